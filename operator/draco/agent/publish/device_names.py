"""The names of this node's GPUs: each stays with its board when minor numbers change.

A GPU is published as gpu-<minor> when first seen, or under the lowest free number if another board has that name. From then on
the name belongs to its UUID: across reboots that permute minor numbers, while it is away, and when it returns. A missing board is
published as absent, so its name never means another board. A board whose slot has another one is no longer published, unless a
claim has it; its name stays reserved. Only a person (`FORGET` on the GpuNode) frees the name of an absent board.

Owns the record of known GPUs, and their view for everybody else. Does not ask NVML or the API server. Records, then publishes.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from draco.agent.files import advice
from draco.agent.hardware.faults import UNREADABLE, with_fault
from draco.agent.hardware.gpus import ABSENT, Gpu, KnownGpu, UnidentifiedGpu, as_told_before, device_name, position
from draco.agent.hardware.monitor import HardwareView
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.agent.state.node import NodeState
from draco.resources.api.draco import GpuNode
from draco.resources.api.slices import Device, ResourceSlice
from draco.resources.names import (
    FORGET_GPU,
    STANDARD_NUMA_NODE,
    STANDARD_PCI_BUS_ID,
    STANDARD_PCIE_ROOT,
    GpuUuid,
    gpu_name,
)
from draco.resources.quantity import Quantity
from draco.resources.semver import SemVer
from draco.resources.texts import counted

UNREPORTED = "The agent has not read this node's published device names from the API server yet."


def given(claims: Iterable[PreparedClaim]) -> list[KnownGpu]:
    """The GPUs of claims on record."""
    devices = (device for claim in claims for device in claim.devices)
    return [KnownGpu(uuid=device.gpu, device=gpu_name(device.device)) for device in devices]


def published(slices: Iterable[ResourceSlice]) -> list[KnownGpu]:
    """The GPUs of these slices, newest first."""
    newest_first = sorted(slices, key=lambda one: -one.spec.pool.generation)
    devices = [device for one in newest_first for device in one.spec.devices]
    return [known for device in devices if (known := _published(device)) is not None]


def _published(device: Device) -> KnownGpu | None:
    """The GPU of a device, or its parent; with all published facts for a whole GPU."""
    said = {name: one.value for name, one in device.attributes.items()}
    if parent := said.get("parentUUID"):
        return KnownGpu(uuid=GpuUuid(str(parent)), device=gpu_name(device.name))
    if not said.get("uuid"):
        return None
    known = KnownGpu(uuid=GpuUuid(str(said["uuid"])), device=device.name)
    address = said.get(STANDARD_PCI_BUS_ID)
    if not address:  # published with fewer facts: the name counts
        return known
    capability = SemVer.read(str(said.get("cudaComputeCapability", "")))
    amount = device.capacity.get("memory")
    memory = None if amount is None else Quantity.read(amount.value)
    mode, root, numa_node = said.get("addressingMode"), said.get(STANDARD_PCIE_ROOT), said.get(STANDARD_NUMA_NODE)
    last = Gpu(
        uuid=known.uuid,
        device=known.device,
        index=-1,
        minor=-1,
        product_name=str(said.get("productName", "")),
        brand=str(said.get("brand", "")),
        architecture=str(said.get("architecture", "")),
        compute_major=None if capability is None else capability.major,
        compute_minor=None if capability is None else capability.minor,
        memory_bytes=None if memory is None else memory.value(),
        pci_bus_id=str(address),
        pcie_root=None if root is None else str(root),
        numa_node=numa_node if isinstance(numa_node, int) else None,
        addressing_mode=None if mode is None else str(mode),
    )
    return msgspec.structs.replace(known, last=last)


def reported(node: GpuNode | None) -> list[KnownGpu]:
    """The GPUs of the GpuNode."""
    gpus = node.status.gpus if node else ()
    return [KnownGpu(uuid=GpuUuid(one.uuid), device=one.device) for one in gpus if one.uuid and one.device]


def bound(known: Mapping[GpuUuid, KnownGpu], published: Iterable[KnownGpu]) -> dict[GpuUuid, KnownGpu]:
    """The known GPUs, and previously published ones; the first that claims a name keeps it."""
    found = dict(known)
    taken = {one.device for one in found.values()}
    for one in published:
        before = found.get(one.uuid)
        if before is None and one.device not in taken:
            found[one.uuid] = one
            taken.add(one.device)
        elif before is not None and before.last is None and before.device == one.device:
            found[one.uuid] = one
    return found


def remembered(
    known: Mapping[GpuUuid, KnownGpu],
    present: Sequence[Gpu],
    *,
    needed: Collection[GpuUuid] = (),
    forget: Collection[GpuUuid] = (),
) -> dict[GpuUuid, KnownGpu]:
    """The known GPUs after a reading: newcomers get names, and those in `forget` go unless they are `needed`.

    A board whose slot has another one keeps only its name until it is read again: otherwise it would be reported as absent as
    soon as the other one is unreadable.
    """
    here = {gpu.uuid: gpu for gpu in present}
    gone = {uuid for uuid in forget if uuid not in here and uuid not in needed}
    found = {uuid: one for uuid, one in known.items() if uuid not in gone}
    taken = {one.device for one in found.values()}
    newcomers = sorted((gpu for uuid, gpu in here.items() if uuid not in found), key=position)
    for gpu in newcomers:
        plain = msgspec.structs.replace(gpu, device="")
        if device_name(plain) not in taken:
            found[plain.uuid] = KnownGpu(uuid=plain.uuid, device=device_name(plain))
            taken.add(device_name(plain))
    for gpu in newcomers:
        if gpu.uuid not in found:
            free = next(name for number in range(len(taken) + 1) if (name := f"gpu-{number}") not in taken)
            found[gpu.uuid] = KnownGpu(uuid=gpu.uuid, device=free)
            taken.add(free)
    places = {gpu.pci_bus_id for gpu in present}
    for uuid, one in list(found.items()):
        if uuid in here:
            found[uuid] = _as_read(one, here[uuid])
        elif uuid not in needed and one.last is not None and one.last.pci_bus_id in places:
            found[uuid] = KnownGpu(uuid=uuid, device=one.device)
    return found


def _as_read(known: KnownGpu, gpu: Gpu) -> KnownGpu:
    """The lasting part of a reading, without what changes while the GPU works."""
    lasting = msgspec.structs.replace(
        _under_its_name(gpu, known),
        index=-1,
        board=gpu.board or (known.last.board if known.last else None),
        instances=(),
        faults=(),
        seen=None,
        unread=(),
        joining=False,
    )
    return msgspec.structs.replace(known, last=lasting)


def shown(
    known: Mapping[GpuUuid, KnownGpu],
    present: Sequence[Gpu],
    *,
    needed: Collection[GpuUuid] = (),
    unidentified: Sequence[UnidentifiedGpu] = (),
) -> tuple[Gpu, ...]:
    """The GPUs under their names, with absent ones. One without a recorded name is left out.

    A GPU that NVML lists but cannot identify is not absent: it keeps its last facts.
    """
    here = [_under_its_name(gpu, one) for gpu in present if (one := known.get(gpu.uuid)) is not None]
    uuids = {gpu.uuid for gpu in present}
    places = {gpu.pci_bus_id for gpu in present}
    listed = {one.uuid: one.message for one in unidentified if one.uuid}
    nobody = [one for one in unidentified if not one.uuid]
    away = [
        _unplaced(one.last, listed[uuid]) if uuid in listed else _absent(one.last, nobody)
        for uuid, one in known.items()
        if uuid not in uuids and one.last is not None and (uuid in needed or one.last.pci_bus_id not in places)
    ]
    return (*here, *away)


def _under_its_name(gpu: Gpu, known: KnownGpu) -> Gpu:
    """The GPU under its name, with unreadable facts taken from the last reading, also one before the agent's start."""
    told = as_told_before(gpu, known.last)
    links = told.links or (known.last.links if known.last else None)
    numa_node = told.numa_node if gpu.numa_node is None else gpu.numa_node  # sysfs may know what NVML cannot read
    return msgspec.structs.replace(told, device=known.device, links=links, numa_node=numa_node)


def _unplaced(last: Gpu, why: str) -> Gpu:
    return with_fault(msgspec.structs.replace(last, minor=-1), UNREADABLE, why)


def _absent(last: Gpu, unidentified: Sequence[UnidentifiedGpu]) -> Gpu:
    unnamed = (
        f" NVML does not report the UUID of {counted(len(unidentified), 'GPU')} of this node, which may be this one."
        if unidentified
        else ""
    )
    sentence = (
        f"NVML does not list GPU {last.uuid} any more (it was at {last.pci_bus_id}).{unnamed} Bring it back and reboot the node, "
        f"or annotate the GpuNode with {FORGET_GPU}={last.uuid} if it is gone for good."
    )
    return with_fault(last, ABSENT, sentence)


def needed_by(claims: Iterable[PreparedClaim]) -> set[GpuUuid]:
    """The GPUs that claims on record have."""
    return {device.gpu for claim in claims for device in claim.devices if claim.state is not PreparationState.PREPARING}


class KnownGpus:
    """The GPUs of one node by name: none before `tell`; nothing is recorded before `record`.

    `in_thread` runs what writes the record. The state has the GPUs called gone for good, and those allocated to claims.
    """

    def __init__(
        self,
        record: Checkpoint,
        state: NodeState,
        *,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._learned = False
        self._recording = False
        self._record = record
        self._state = state
        self._in_thread = in_thread
        self._before: list[KnownGpu] = []

    def tell(self, before: Iterable[KnownGpu] = ()) -> None:
        """Make names known: recorded ones, those of claims on record, and `before`."""
        self._before = [*given(self._record.claims.values()), *before]
        self._learned = True

    def record(self) -> None:
        """Record new names from now on."""
        self._recording = True

    async def view(self, read: HardwareView) -> HardwareView:
        """A reading with the GPUs under their names, and the absent ones."""
        if not self._learned:
            return HardwareView(fault=UNREPORTED, unidentified=read.unidentified)
        wanted = self._state.facts.wanted
        needed = needed_by(self._record.claims.values()) | wanted.promised.keys()
        known: Mapping[GpuUuid, KnownGpu] = bound(self._record.known, self._before)
        fresh = remembered(known, read.gpus, needed=needed, forget=wanted.forgotten)
        problem = ""
        if self._recording and fresh != self._record.known:
            try:
                await self._in_thread(lambda: self._record.remember(fresh.values()))
                self._before = []
            except OSError as error:
                problem = f"{advice(error)}."
        known = known if problem else fresh
        nameless = tuple(
            UnidentifiedGpu(
                gpu.index, f"{gpu.uuid} has no device name yet, as it cannot be recorded: {problem}", gpu.uuid
            )
            for gpu in read.gpus
            if gpu.uuid not in known
        )
        return msgspec.structs.replace(
            read,
            gpus=shown(known, read.gpus, needed=needed, unidentified=read.unidentified),
            unidentified=(*read.unidentified, *nameless),
        )
