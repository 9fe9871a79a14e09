"""Computes what a policy wants of one GPU.

Owns the way from a policy's words, which are for any board, to what is wanted of a GPU with a certain board: the layout with its
starts, and the profiles that the board has.
"""

from functools import lru_cache
from typing import NamedTuple

import msgspec

from draco.mig.board import Board, Placement
from draco.mig.layouts import LayoutError, LayoutItem, resolve
from draco.mig_policy.boards import profile_names
from draco.mig_policy.gpu_state import GpuCondition, LayoutState
from draco.resources.api.draco import (
    GpuMig,
    InstanceUse,
    LayoutInstances,
    MigMode,
    MigPolicy,
    WantedGpu,
    WantedInstance,
)

_KEPT = frozenset({InstanceUse.CLAIM, InstanceUse.LAYOUT, InstanceUse.WARM})


class WantedResult(NamedTuple):
    """What is wanted; or why it cannot be said, and then the GPU stays as it is."""

    wanted: WantedGpu | None
    hindered: GpuCondition | None = None


def wanted_of(policy: MigPolicy, uuid: str, mig: GpuMig, board: Board | None) -> WantedResult:
    """What the policy wants of the GPU with this UUID. Resets are not permitted yet: that is a matter of time."""
    plain = WantedGpu(uuid=uuid, policy=policy.metadata.name, mode=policy.spec.mode)
    if policy.spec.mode is MigMode.DISABLED:
        return WantedResult(plain)
    if board is None:
        # Some drivers tell what fits on a board only once MIG is on, so that comes first.
        return (
            WantedResult(plain)
            if not mig.enabled
            else _cannot(LayoutState.CHANGING, "its agent has not reported its board")
        )
    return _static(policy, plain, mig, board) if policy.spec.mode is MigMode.STATIC else _dynamic(policy, plain, board)


def _static(policy: MigPolicy, plain: WantedGpu, mig: GpuMig, board: Board) -> WantedResult:
    layout = next((each for each in policy.spec.layouts if each.name == policy.spec.layout), None)
    if layout is None:
        return _cannot(LayoutState.FAILED, f"spec.layouts has no layout named {policy.spec.layout}")
    placed = _placed(board, tuple(layout.instances), _present(mig, board))
    if isinstance(placed, str):
        return _cannot(LayoutState.FAILED, f"layout {layout.name}: {placed}")
    return WantedResult(msgspec.structs.replace(plain, layout=list(placed)))


def _dynamic(policy: MigPolicy, plain: WantedGpu, board: Board) -> WantedResult:
    has = {profile.name for profile in board.profiles}
    profiles = [name for name in policy.spec.profiles if name in has]
    if policy.spec.profiles and not profiles:
        names = ", ".join(profile_names({"": board}))
        return _cannot(LayoutState.FAILED, f"its board has none of spec.profiles; it has {names}")
    warm = [each for each in policy.spec.warm if each.profile in has]
    return WantedResult(msgspec.structs.replace(plain, profiles=profiles, warm=warm))


def _cannot(state: LayoutState, message: str) -> WantedResult:
    return WantedResult(None, GpuCondition(state, message.rstrip(".")))


def _present(mig: GpuMig, board: Board) -> frozenset[Placement]:
    """What is there to stay, if it can: an instance in use should not go because another start would do as well."""
    return frozenset(
        Placement(profile, each.start)
        for each in mig.instances
        if each.use in _KEPT and (profile := board.profile(each.profile)) is not None
    )


@lru_cache(maxsize=4096)
def _placed(
    board: Board, instances: tuple[LayoutInstances, ...], present: frozenset[Placement]
) -> tuple[WantedInstance, ...] | str:
    """The layout on this board, in the order of starts; or why it cannot be."""
    try:
        placements = resolve(board, [LayoutItem(each.profile, each.count, each.start) for each in instances], present)
    except LayoutError as error:
        return str(error)
    return tuple(WantedInstance(profile=each.profile.name, start=each.start) for each in placements)
