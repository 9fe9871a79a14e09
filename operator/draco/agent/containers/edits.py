"""Edits of a container, as CDI specs have them.

Owns the structs, whose names and defaults are the specification's. Writes no files.
Source: Container Device Interface specification.
"""

import msgspec

READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
SOCKET = ["nosuid", "nodev", "rbind", "rprivate", "noexec"]
"""Options of mounts, as NVIDIA's toolkit has them: a program that dials a socket must be able to write to it."""


class DeviceNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A device node, under the same path in the container unless `host_path` says otherwise."""

    path: str
    host_path: str = ""


class Mount(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A bind mount."""

    host_path: str
    container_path: str
    options: list[str] = []


class Hook(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A program of the node that is run before the container's own."""

    hook_name: str
    path: str
    args: list[str] = []
    env: list[str] = []


class ContainerEdits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What is added to a container."""

    env: list[str] = []
    device_nodes: list[DeviceNode] = []
    hooks: list[Hook] = []
    mounts: list[Mount] = []
