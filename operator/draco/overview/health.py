"""The content of `draco health`: each GPU with its faults, its users, and what to do. Agents and policies judge the faults."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final

from draco.health.table import LADDER, HealthState
from draco.overview.hardware_use import HardwareByPool
from draco.overview.maintenances import phase_of, pods_using
from draco.overview.snapshot import natural
from draco.resources.api.base import OutputStruct
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.draco import GpuNode, GpuStatus
from draco.resources.api.health import HEALTHY, FaultFamily, GpuFaultStatus
from draco.resources.api.maintenance import OVER, DeviceMaintenance
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import ResourceSlice
from draco.resources.names import DeviceKey

SCHEMA = "draco.dev/health/v1"
"""Schema of the JSON document. Fields are only added under one name."""

WHAT_TO_DO: Final[Mapping[FaultFamily, str]] = MappingProxyType(
    {
        FaultFamily.XID: "look the XID up in docs/reference/xids.md",
        FaultFamily.ECC: "drain and reset the GPU; replace it if the errors return",
        FaultFamily.ROW_REMAP: "reset the GPU at the next opportunity; replace it if the remap failed",
        FaultFamily.THERMAL: "check the node's cooling",
        FaultFamily.NVLINK: "check the links and the fabric manager, then reset the GPU",
        FaultFamily.FABRIC: "look into the fabric manager's log, then reset the GPU or reboot the node",
        FaultFamily.RECOVERY: "do what NVML's recovery action asks for",
        FaultFamily.LOST: "reboot the node; reseat or replace the board if it stays away",
        FaultFamily.DRIVER: "reload the driver or reboot the node",
        FaultFamily.UNREADABLE: "find out why NVML does not answer; until then the health is unknown",
    }
)
"""The remedy for each family, for faults without their own."""


class FaultView(OutputStruct, frozen=True, kw_only=True):
    """One fault in a GPU's ledger. `instance` is the GPU instance's id, -1 if the whole GPU is concerned.

    `policy` is the HealthPolicy that decides its effect, "" for Draco's own table.
    """

    family: str
    name: str
    scope: str
    instance: int = -1
    count: int = 1
    first_seen: str = ""
    last_seen: str = ""
    latched: bool = False
    clean_probes: int = 0
    effect: str = ""
    policy: str = ""
    message: str = ""
    what_to_do: str = ""


class GpuHealthView(OutputStruct, frozen=True, kw_only=True):
    """One GPU. `faults`: the worst first. `claims`: on it or its parts. `pods`: users of these claims.

    `notes`: what is unknown about it, and what keeps claims off it without being a fault. `maintenances`: unfinished requests
    about it.
    """

    node: str
    device: str
    uuid: str
    product: str
    health: str
    message: str = ""
    notes: list[str] = []
    faults: list[FaultView] = []
    claims: list[str] = []
    pods: list[str] = []
    maintenances: list[str] = []

    @property
    def is_noteworthy(self) -> bool:
        """Whether there is anything to report about it."""
        return self.health != HEALTHY or bool(self.faults or self.notes)


class UnidentifiedView(OutputStruct, frozen=True, kw_only=True):
    """A GPU that no claim can get, because NVML does not report what an allocation needs; `message` says what to do."""

    node: str
    index: int
    uuid: str = ""
    message: str = ""


class HealthDocument(OutputStruct, frozen=True, kw_only=True):
    """GPUs and their health. `healthy` counts those not listed; `unread` lists what could not be read.

    `unidentified` GPUs are in neither, nor in `total`.
    """

    schema: str = SCHEMA
    gpus: list[GpuHealthView]
    unidentified: list[UnidentifiedView] = []
    total: int = 0
    healthy: int = 0
    unread: list[str] = []


def gpu_views(
    gpu_nodes: Iterable[GpuNode],
    *,
    slices: Iterable[ResourceSlice] = (),
    claims: Iterable[ResourceClaim] = (),
    members: Mapping[ObjectKey, Pod] = MappingProxyType({}),
    maintenances: Iterable[DeviceMaintenance] = (),
) -> list[GpuHealthView]:
    """Every GPU that an agent reports, by node and name. `members` are pods that may have a claim through a PodGroup."""
    hardware = HardwareByPool(slices)
    by_name = {str(claim.metadata.key): claim for claim in claims}
    holders: dict[DeviceKey, list[str]] = {}
    for name, claim in by_name.items():
        for device in claim.devices_held:
            holders.setdefault(device, []).append(name)
    requests = [each for each in maintenances if phase_of(each) not in OVER]
    about = _by_device(requests)
    views = []
    for node in sorted(gpu_nodes, key=lambda each: natural(each.metadata.name)):
        for gpu in sorted(node.status.gpus, key=lambda each: natural(each.device)):
            whole = DeviceKey(node.status.driver, node.metadata.name, gpu.device)
            overlapping = hardware.of(whole.pool_key).overlapping(gpu.device)
            here = {whole, *(whole._replace(device=name) for name in overlapping)}
            held_by = sorted({name for device in here for name in holders.get(device, ())})
            keys: list[DeviceKey | str] = [*here, gpu.uuid]
            numbers = sorted({number for key in keys for number in about.get(key, ())})
            open_ones = [f"{requests[each].metadata.name} ({phase_of(requests[each])})" for each in numbers]
            views.append(_view(node, gpu, held_by, pods_using(held_by, by_name, members), open_ones))
    return views


def unidentified(gpu_nodes: Iterable[GpuNode]) -> list[UnidentifiedView]:
    """The GPUs that agents see but cannot identify, by node and index."""
    return [
        UnidentifiedView(node=node.metadata.name, index=one.index, uuid=one.uuid, message=one.message)
        for node in sorted(gpu_nodes, key=lambda each: natural(each.metadata.name))
        for one in sorted(node.status.unidentified, key=lambda each: each.index)
    ]


def chosen(views: Sequence[GpuHealthView], text: str) -> list[GpuHealthView]:
    """The GPUs of a node's name, NODE/DEVICE or UUID; empty if nothing matches."""
    ways: tuple[Callable[[GpuHealthView], bool], ...] = (
        lambda view: view.node == text,
        lambda view: f"{view.node}/{view.device}" == text,
        lambda view: bool(view.uuid) and view.uuid.lower() == text.lower(),
    )
    return next((found for way in ways if (found := list(filter(way, views)))), [])


def names_of(views: Iterable[GpuHealthView]) -> set[str]:
    """All names that `chosen` accepts."""
    return {name for view in views for name in (view.node, f"{view.node}/{view.device}", view.uuid) if name}


def _view(node: GpuNode, gpu: GpuStatus, claims: list[str], pods: list[str], maintenances: list[str]) -> GpuHealthView:
    lost = node.is_agent_lost
    return GpuHealthView(
        node=node.metadata.name,
        device=gpu.device,
        uuid=gpu.uuid,
        product=gpu.product_name,
        health=HealthState.UNKNOWN.value if lost else gpu.health,
        message=f"The agent of node {node.metadata.name} is lost; it last said {gpu.health}." if lost else gpu.message,
        notes=gpu.notes,
        faults=[_fault(each) for each in sorted(gpu.faults, key=lambda each: -LADDER.index(each.effect))],
        claims=claims,
        pods=pods,
        maintenances=maintenances,
    )


def _fault(fault: GpuFaultStatus) -> FaultView:
    return FaultView(
        family=fault.family,
        name=fault.name,
        scope=fault.scope,
        instance=-1 if fault.instance is None else fault.instance,
        count=fault.count,
        first_seen=_text(fault.first_seen),
        last_seen=_text(fault.last_seen),
        latched=fault.latched,
        clean_probes=fault.clean_probes,
        effect=fault.effect,
        policy=fault.policy,
        message=fault.message,
        what_to_do=WHAT_TO_DO[fault.family],
    )


def _text(moment: datetime | None) -> str:
    return moment.isoformat(timespec="seconds") if moment else ""


def _by_device(requests: Sequence[DeviceMaintenance]) -> Mapping[DeviceKey | str, Sequence[int]]:
    """Indices of the requests about each device, and about each GPU's UUID."""
    found: dict[DeviceKey | str, list[int]] = defaultdict(list)
    for number, request in enumerate(requests):
        for device in request.status.devices:
            found[device.key].append(number)
            if device.uuid:
                found[device.uuid].append(number)
    return found
