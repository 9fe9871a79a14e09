"""Which taints a published device has: those of maintenance and of a fabric that is not joined yet, and as many as find room.

Owns which of them concern a partition, and which stay out where there are more than Kubernetes permits. Those of faults are
`health.judgement`'s. Pure.
"""

from collections.abc import Iterable, Sequence

from draco.agent.hardware.gpus import LocatedGpu
from draco.mig.board import ENGINE_CAPACITIES, Board, Placement
from draco.resources.api.draco import IsolatedGpu
from draco.resources.api.taints import BLOCKING_EFFECTS, TAINTS_PER_DEVICE, DeviceTaint, TaintIdentity
from draco.resources.names import TAINT_UNSETTLED, UNSETTLED_FABRIC, read_partition_name


def joining_taints(located: LocatedGpu) -> list[DeviceTaint]:
    """The taint of a whole GPU that is still being registered with its NVLink fabric; its partitions do not need that."""
    return (
        [DeviceTaint(key=TAINT_UNSETTLED, value=UNSETTLED_FABRIC, effect="NoSchedule")] if located.gpu.joining else []
    )


def as_many_as_fit(taints: Sequence[DeviceTaint]) -> list[DeviceTaint]:
    """The taints that find room: what keeps claims away before what is only said, else those that come first."""
    return sorted(taints, key=lambda one: one.effect not in BLOCKING_EFFECTS)[:TAINTS_PER_DEVICE]


def isolation_taints(
    isolated: Iterable[IsolatedGpu], board: Board | None = None, placement: Placement | None = None
) -> list[DeviceTaint]:
    """The taints of a GPU that is under maintenance, or of the partition at `placement`, as far as that is concerned.

    Under maintenance as a part of the GPU are that part and all that cannot be had together with it. A part that the board does
    not know stands for the whole.
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
    """Whether the GPU's counters cannot pay for both."""
    fields = (*ENGINE_CAPACITIES.values(), "memory_mib")
    return bool(one.mask & other.mask) or any(
        getattr(one.profile, field) + getattr(other.profile, field)
        > max(getattr(profile, field) for profile in board.profiles)
        for field in fields
        if getattr(one.profile, field) and getattr(other.profile, field)
    )
