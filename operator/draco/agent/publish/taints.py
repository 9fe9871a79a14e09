"""The taints of a published device: those of maintenance and of an unjoined fabric, limited to what fits.

Owns which of them concern a partition, and which are dropped if there are more than Kubernetes permits. `health.judgement` has
those of faults. Pure.
"""

from collections.abc import Iterable, Sequence

import msgspec

from draco.agent.hardware.gpus import Gpu
from draco.mig.board import ENGINE_CAPACITIES, Board, Placement
from draco.resources.api.draco import IsolatedGpu
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import BLOCKING_EFFECTS, TAINTS_PER_DEVICE, DeviceTaint, TaintIdentity
from draco.resources.names import (
    ALLOCATED_BY_OPERATOR,
    ATTRIBUTE_ALLOCATOR,
    TAINT_OPERATOR_ALLOCATED,
    TAINT_UNSETTLED,
    UNSETTLED_FABRIC,
    read_partition_name,
)


def joining_taints(gpu: Gpu) -> list[DeviceTaint]:
    """The taint of a whole GPU that has not joined its NVLink fabric; partitions do not use the fabric."""
    return [DeviceTaint(key=TAINT_UNSETTLED, value=UNSETTLED_FABRIC, effect="NoSchedule")] if gpu.joining else []


def as_many_as_fit(taints: Sequence[DeviceTaint]) -> list[DeviceTaint]:
    """The taints within Kubernetes' limit: blocking ones before announcements, otherwise the first."""
    return sorted(taints, key=lambda one: one.effect not in BLOCKING_EFFECTS)[:TAINTS_PER_DEVICE]


def isolation_taints(
    isolated: Iterable[IsolatedGpu], board: Board | None = None, placement: Placement | None = None
) -> list[DeviceTaint]:
    """The taints of a GPU under maintenance, or of the partition at `placement`, if it is concerned.

    Maintenance of a part of the GPU concerns that part and all that cannot coexist with it. A part that the board does not know
    means the whole GPU.
    """
    found: dict[TaintIdentity, DeviceTaint] = {}
    for each in isolated:
        part = read_partition_name(each.device)
        profile = board.by_id(part.profile_id) if board is not None and part is not None else None
        if board is None or part is None or profile is None or placement is None:
            concerned = True
        else:
            concerned = _compete(board, Placement(profile, part.start), placement)
        if concerned:
            found.setdefault(each.taint.identity, each.taint)
    return list(found.values())


def _compete(board: Board, one: Placement, other: Placement) -> bool:
    """Whether the GPU's counters are too small for both."""
    fields = (*ENGINE_CAPACITIES.values(), "memory_mib")
    return bool(one.mask & other.mask) or any(
        getattr(one.profile, field) + getattr(other.profile, field)
        > max(getattr(profile, field) for profile in board.profiles)
        for field in fields
        if getattr(one.profile, field) and getattr(other.profile, field)
    )


def kept_from_scheduler(device: Device) -> Device:
    """The device as one that Draco allocates: selectors see it, and kube-scheduler skips it."""
    allocator = {ATTRIBUTE_ALLOCATOR: DeviceAttribute(string=ALLOCATED_BY_OPERATOR)}
    marked = msgspec.structs.replace(device, attributes=device.attributes | allocator)
    return tainted(marked, TAINT_OPERATOR_ALLOCATED)


def tainted(device: Device, key: str, value: str = "") -> Device:
    """The device with a taint for the scheduler, before all its other taints."""
    taint = DeviceTaint(key=key, value=value, effect="NoSchedule")
    return msgspec.structs.replace(device, taints=as_many_as_fit([taint, *device.taints]))
