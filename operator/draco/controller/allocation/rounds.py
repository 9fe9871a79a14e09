"""Plans one round of allocation: what the groups asked about get, and what follows for those that get nothing.

Groups are judged in order. A group with a place gets it if limits permit it and its devices are still available. If a group does
not get its place, its devices may be what the next one lacked; and devices kept for one group were unknown to those asked about
together with it. Such answers are void, and the groups are asked about again. Pure: writes, asks and remembers nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from draco.controller.allocation.asking.basis import Basis
from draco.controller.allocation.reclaiming.useless import cannot_start
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.limits.enforcement import LimitRound
from draco.placing.groups.group import GroupPlacement
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey


class Kept(msgspec.Struct, frozen=True):
    """What is kept free for which group: devices that it lacks, or that were given to these claims of it."""

    uid: str = ""
    devices: frozenset[DeviceKey] = frozenset()
    claims: frozenset[ObjectKey] = frozenset()


class AnsweredGroup(NamedTuple):
    """A group with its place, or the reason why it has none."""

    waiting: WaitingGroup
    placement: GroupPlacement

    @property
    def devices(self) -> frozenset[DeviceKey]:
        """All devices that it would get."""
        return frozenset(
            one.key for results in self.placement.results for each in results for one in each.devices.results
        )

    @property
    def allocations(self) -> list[tuple[ResourceClaim, AllocationResult]]:
        """The result for each of its claims; none for members without a place."""
        members = zip(self.waiting.group.members, self.placement.results, strict=True)
        return [pair for member, results in members if results for pair in zip(member.claims, results, strict=True)]


class AllocationSnapshot(NamedTuple):
    """The waiting groups as read: all of them, those that can be asked about, and the basis."""

    waiting: Sequence[WaitingGroup]
    groups: Mapping[str, WaitingGroup]
    basis: Basis
    again_s: float
    """Seconds until something here changes with time alone."""


class Batch(NamedTuple):
    """Groups to ask the workers about now, and groups that a limit forbids any devices."""

    groups: Mapping[str, WaitingGroup]
    limited: Sequence[AnsweredGroup]


class RoundInput(NamedTuple):
    """What the plan depends on beside the answers, read after they arrive."""

    head: str
    """UID of the overdue group; "" for none."""
    kept: Kept
    limits: LimitRound
    may_get: Callable[[WaitingGroup, frozenset[DeviceKey]], bool]
    """Whether Draco still owns the devices and may still write the group's claims."""
    is_alone: Callable[[str], bool]
    """Whether the group is asked about alone, because a batch with it got no answer."""
    may_preempt: Callable[[WaitingGroup], bool]
    """Whether preemption may be planned for the group now."""


class Round(msgspec.Struct, kw_only=True):
    """The actions of a round, made by `plan_round`."""

    kept: Kept
    allocate: list[AnsweredGroup] = []
    without_place: list[AnsweredGroup] = []
    """Groups to remember and to inform."""
    limited: list[str] = []
    """UIDs of the groups that a limit keeps from devices."""
    give_back: list[tuple[ResourceClaim, str]] = []
    """Claims to give back because the rest of their group finds no place, with the reason."""
    make_room: list[WaitingGroup] = []
    """Candidates for preemption; it serves the first for which it helps."""
    void: list[WaitingGroup] = []
    """Groups to ask about again immediately."""

    def __str__(self) -> str:
        """One readable line: `allocate default/train; no place for default/big: no device is free`."""
        parts = [f"allocate {each.waiting.called}" for each in self.allocate]
        parts += [f"no place for {each.waiting.called}: {each.placement.why_not}" for each in self.without_place]
        parts += [f"give back {claim.metadata.key}" for claim, _ in self.give_back]
        parts += [f"make room for {each.called}" for each in self.make_room[:1]]
        parts += [f"ask again about {each.called}" for each in self.void]
        if self.kept.uid:
            parts.append(f"keep {len(self.kept.devices)} devices for {self.kept.uid}")
        return "; ".join(parts) or "nothing"


def plan_round(limited: Sequence[AnsweredGroup], answered: Sequence[AnsweredGroup], known: RoundInput) -> Round:
    """Plan for groups that a limit forbids any devices, and for those that the workers answered about."""
    planned = Round(kept=known.kept)
    for each in limited:
        planned.limited.append(each.waiting.uid)
        planned.without_place.append(each)
        _give_back(planned, each.waiting)
    is_vain = False
    for each in answered:
        waiting, found = each
        is_outranked = any(
            waiting.priority is None or waiting.priority <= (one.priority or 0) for one in planned.make_room
        )
        # Ask again: an earlier group's unused place may be what it lacked, and devices kept for another must be known first.
        if is_outranked or (is_vain and not found.results):
            is_vain |= is_outranked
            planned.void.append(waiting)
            continue
        if found.results and not known.may_get(waiting, each.devices):
            is_vain = True
            planned.void.append(waiting)
            continue
        placement = known.limits.within(waiting.group, found)
        is_vain |= placement.results != found.results
        if found.results and not placement.results:
            planned.limited.append(waiting.uid)
        planned.kept = _kept(planned.kept, AnsweredGroup(waiting, placement), devices=each.devices, head=known.head)
        if placement.results:
            planned.allocate.append(AnsweredGroup(waiting, placement))
            continue
        planned.without_place.append(AnsweredGroup(waiting, placement))
        if not known.is_alone(waiting.uid):
            _give_back(planned, waiting)
            if not placement.is_hopeless and known.may_preempt(waiting):
                planned.make_room.append(waiting)
    return planned


def _give_back(planned: Round, waiting: WaitingGroup) -> None:
    planned.give_back += [(claim, cannot_start(waiting.group.name)) for claim in waiting.loose]


def _kept(kept: Kept, each: AnsweredGroup, *, devices: frozenset[DeviceKey], head: str) -> Kept:
    waiting, placement = each
    if placement.results and waiting.uid == head:
        return Kept(waiting.uid, devices, frozenset(claim.metadata.key for claim in waiting.group.claims))
    if kept.uid == waiting.uid or placement.kept:
        return Kept(waiting.uid, frozenset(placement.kept)) if placement.kept else Kept()
    return kept
