"""One round of allocation: what the groups that were asked about get, and what follows for those that get nothing.

Groups are judged one after the other, in their order. One with a place gets it as far as limits permit and as long as its devices
may still be given. What a group did not get, though it was to, may be what the next one lacked, and what is kept for one is not
known to those that were asked about with it: such answers are void, and these groups are asked about again. Pure: nothing is
written, asked or remembered here.
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
    """What is kept free, and for which group: what it lacks, or what was given to these claims of it."""

    uid: str = ""
    devices: frozenset[DeviceKey] = frozenset()
    claims: frozenset[ObjectKey] = frozenset()


class AnsweredGroup(NamedTuple):
    """A group, and where it goes or why nowhere."""

    waiting: WaitingGroup
    placement: GroupPlacement

    @property
    def devices(self) -> frozenset[DeviceKey]:
        """All that it is to get."""
        return frozenset(
            one.key for results in self.placement.results for each in results for one in each.devices.results
        )

    @property
    def allocations(self) -> list[tuple[ResourceClaim, AllocationResult]]:
        """What each of its claims gets; none of a member that goes without."""
        members = zip(self.waiting.group.members, self.placement.results, strict=True)
        return [pair for member, results in members if results for pair in zip(member.claims, results, strict=True)]


class AllocationSnapshot(NamedTuple):
    """What waits, as it was read: all groups, those that can be asked about, and what is known beside them."""

    waiting: Sequence[WaitingGroup]
    groups: Mapping[str, WaitingGroup]
    basis: Basis
    again_s: float
    """In how many seconds something of this is another though nothing changes."""


class Batch(NamedTuple):
    """Whose turn it is: groups to ask the workers about, and those that a limit forbids whatever devices they would get."""

    groups: Mapping[str, WaitingGroup]
    limited: Sequence[AnsweredGroup]


class RoundInput(NamedTuple):
    """What decides beside the answers, read when these are there."""

    head: str
    """The group that has waited too long, by UID; "" for none."""
    kept: Kept
    limits: LimitRound
    may_get: Callable[[WaitingGroup, frozenset[DeviceKey]], bool]
    """Whether the devices are still Draco's, and the group's claims still to be written."""
    is_alone: Callable[[str], bool]
    """Whether the group is asked about on its own, as there was no answer when it was with others."""
    may_preempt: Callable[[WaitingGroup], bool]
    """Whether others may leave for the group now."""


class Round(msgspec.Struct, kw_only=True):
    """What is done: `plan_round` makes it."""

    kept: Kept
    allocate: list[AnsweredGroup] = []
    without_place: list[AnsweredGroup] = []
    """To be remembered, and told to the groups."""
    limited: list[str] = []
    """The groups, by UID, that a limit keeps from what they could have."""
    give_back: list[tuple[ResourceClaim, str]] = []
    """Claims whose group finds no place for the rest, and why they are given back."""
    make_room: list[WaitingGroup] = []
    """Those for the first of which others leave, if that helps."""
    void: list[WaitingGroup] = []
    """To be asked about again at once."""

    def __str__(self) -> str:
        """As a person reads it: `allocate default/train; no place for default/big: no device is free`."""
        parts = [f"allocate {each.waiting.called}" for each in self.allocate]
        parts += [f"no place for {each.waiting.called}: {each.placement.why_not}" for each in self.without_place]
        parts += [f"give back {claim.metadata.key}" for claim, _ in self.give_back]
        parts += [f"make room for {each.called}" for each in self.make_room[:1]]
        parts += [f"ask again about {each.called}" for each in self.void]
        if self.kept.uid:
            parts.append(f"keep {len(self.kept.devices)} devices for {self.kept.uid}")
        return "; ".join(parts) or "nothing"


def plan_round(limited: Sequence[AnsweredGroup], answered: Sequence[AnsweredGroup], known: RoundInput) -> Round:
    """The round for groups that a limit forbids whatever they would get, and for those that workers answered about."""
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
        # What a place before it was to take may be just what it lacked; what is kept for another is to be known first.
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
    """What is kept once this group has its answer."""
    waiting, placement = each
    if placement.results and waiting.uid == head:
        return Kept(waiting.uid, devices, frozenset(claim.metadata.key for claim in waiting.group.claims))
    if kept.uid == waiting.uid or placement.kept:
        return Kept(waiting.uid, frozenset(placement.kept)) if placement.kept else Kept()
    return kept
