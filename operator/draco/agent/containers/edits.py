"""Edits of a container. Names and defaults of the structs are those of the Container Device Interface specification."""

import msgspec

READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
SOCKET = ["nosuid", "nodev", "rbind", "rprivate", "noexec"]
"""Mount options of NVIDIA's toolkit: connecting to a socket needs write permission."""


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
    """A program of the node that runs before the container's own."""

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
