"""Converts the sharing of NVIDIA's device plugin to SharingPolicies and DeviceClasses.

There, each GPU is advertised as `replicas` of a resource; here, a SharingPolicy lets as many claims have it, and a pod that asks
for the resource gets a share. Owns the format, and what has no equal in Draco. What the plugin ignores is ignored, and said.

Source: the types of NVIDIA's k8s-device-plugin, version v1 of its configuration.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from draco.mig.known_boards import BoardModel
from draco.migration.conversion import Conversion, Converted, FormatError, Rest, decoded, object_name, selector
from draco.resources.api.claims import DeviceClass, DeviceClassSpec
from draco.resources.api.meta import LabelSelector, ObjectMeta
from draco.resources.api.sharing import Enforcement, SharingMode, SharingPolicy, SharingPolicySpec
from draco.resources.names import NVIDIA_DRIVER

LABEL: Final = "nvidia.com/device-plugin.config"
"""On a node: the key of the ConfigMap with the configuration that it uses."""
_PREFIX: Final = "nvidia.com/"
_GPUS: Final = "nvidia.com/gpu"
_SHARED: Final = ".shared"
_ALL: Final = "all"


class Replicated(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource of which each device is advertised several times. The plugin ignores `rename` and `devices`."""

    name: str
    replicas: int
    rename: str = ""
    devices: str | int | list[str | int] = _ALL

    @property
    def resource(self) -> str:
        """The resource, with its domain."""
        return self.name if self.name.startswith(_PREFIX) else _PREFIX + self.name


class ReplicatedResources(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Resources that are shared in one way."""

    resources: list[Replicated]
    rename_by_default: bool = False


class Sharing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Ways to share, of which one is used."""

    time_slicing: ReplicatedResources | None = None
    mps: ReplicatedResources | None = None


class PluginSharing(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, as far as it is about sharing."""

    version: str
    sharing: Sharing = Sharing()


def read(document: object) -> PluginSharing:
    """Read a configuration. Raises FormatError."""
    found = decoded(document, PluginSharing, "NVIDIA's device plugin")
    if found.sharing.time_slicing is not None and found.sharing.mps is not None:
        raise FormatError("it has sharing.timeSlicing and sharing.mps, which exclude each other: remove one")
    for shared in filter(None, (found.sharing.time_slicing, found.sharing.mps)):
        for each in shared.resources:
            if each.replicas <= 1:
                raise FormatError(f"resource {each.name} has {each.replicas} replicas: it must have 2 or more")
    return found


def convert(configurations: Mapping[str, PluginSharing], board: BoardModel | None = None) -> Conversion:
    """Convert configurations by their key in a ConfigMap, "" for one of its own. `board`: that of the GPUs, for MPS."""
    found: list[Converted | Rest] = []
    is_renamed = False
    for key, configuration in configurations.items():
        sharing = configuration.sharing
        if (shared := sharing.mps or sharing.time_slicing) is None:
            continue
        nodes = LabelSelector(match_labels={LABEL: key}) if key else None
        for each in shared.resources:
            found += _converted(each, key or "shared", nodes, board, by_mps=shared is sharing.mps)
        is_renamed |= shared.rename_by_default
    if is_renamed and any(isinstance(each, SharingPolicy) for each in found):
        found += [
            _class_of_shares(),
            Rest(
                _GPUS + _SHARED,
                f"the device plugin gives pods that ask for {_GPUS} no shared GPU. For that, let the class that serves {_GPUS} "
                "select !device.allowMultipleAllocations.",
            ),
        ]
    return Conversion.of(found)


def _converted(
    each: Replicated, name: str, nodes: LabelSelector | None, board: BoardModel | None, *, by_mps: bool
) -> Iterator[Converted | Rest]:
    if each.resource != _GPUS:
        yield Rest(
            name,
            f"it shares {each.resource}. For MIG devices, write a SharingPolicy with migDevices: true for nodes with a static "
            "layout; Draco serves no other resource.",
        )
        return
    if each.devices != _ALL or each.rename:
        fields = " and ".join(
            field for field, is_set in (("devices", each.devices != _ALL), ("rename", each.rename)) if is_set
        )
        yield Rest(name, f"the device plugin ignores {fields} of {each.resource}, and so does the policy.")
    if not by_mps:
        yield _policy(name, SharingPolicySpec(mode=SharingMode.COUNT, count=each.replicas, node_selector=nodes))
        return
    if board is None:
        yield Rest(
            name,
            f"it gives each pod 1/{each.replicas} of a GPU's memory by MPS, and how much that is depends on the board: "
            "name it with --board.",
        )
        return
    yield _policy(
        name,
        SharingPolicySpec(
            mode=SharingMode.MEMORY,
            default=f"{board.memory_mib // each.replicas}Mi",
            enforcement=Enforcement.MPS,
            node_selector=nodes,
            device_selectors=[selector(f'device.attributes["{NVIDIA_DRIVER}"].productName == "{board.product_name}"')],
        ),
    )
    yield Rest(
        name,
        f"it limits each pod to {100 // each.replicas} % of the threads. In Draco a claim asks for that, with "
        "defaultActiveThreadPercentage in its GpuConfig.",
    )


def _policy(name: str, spec: SharingPolicySpec) -> SharingPolicy:
    return SharingPolicy(metadata=ObjectMeta(name=object_name(name)), spec=spec)


def _class_of_shares() -> DeviceClass:
    """Serves the name under which the plugin advertises shared GPUs when it renames them."""
    return DeviceClass(
        metadata=ObjectMeta(name="gpu-shared.nvidia.com"),
        spec=DeviceClassSpec(
            extended_resource_name=_GPUS + _SHARED,
            selectors=[
                selector(
                    f'device.driver == "{NVIDIA_DRIVER}" && device.attributes["{NVIDIA_DRIVER}"].type == "gpu" && '
                    "device.allowMultipleAllocations"
                )
            ],
        ),
    )
