"""One round as a value: what groups get, what happens to those that get nothing, and what is searched for again."""

from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from draco.controller.allocation.reclaiming.useless import cannot_start
from draco.controller.allocation.rounds import AnsweredGroup, Kept, Round, RoundInput, plan_round
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.limits.enforcement import LimitRound
from draco.placing.groups.group import ClaimGroup, GroupMember, GroupPlacement
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import DeviceKey
from tests.builders import a_claim, a_device_key

NONE = GroupPlacement([], "no device is free")
HOPELESS = GroupPlacement([], "no such device", is_hopeless=True)


class Limits:
    """Permits everything except the claims of these names."""

    def __init__(self, *forbidden: str) -> None:
        self._forbidden = forbidden

    def within(self, group: ClaimGroup, placement: GroupPlacement) -> GroupPlacement:
        if placement.results and group.claims[0].metadata.name in self._forbidden:
            return GroupPlacement([], "a limit", is_hopeless=True)
        return placement


def a_group(name: str, *, priority: int | None = 0, loose: Sequence[ResourceClaim] = ()) -> WaitingGroup:
    group = ClaimGroup([GroupMember([a_claim(name)])])
    return WaitingGroup(uid=name, group=group, order=(0, "", name), priority=priority, loose=loose)


def placed(name: str, gpu: int, *, priority: int = 0) -> AnsweredGroup:
    allocation = a_claim(name, on=[f"node-0/gpu-{gpu}"]).status.allocation
    assert allocation is not None
    return AnsweredGroup(a_group(name, priority=priority), GroupPlacement([[allocation]]))


def refused(name: str, placement: GroupPlacement = NONE, *, priority: int | None = 0) -> AnsweredGroup:
    return AnsweredGroup(a_group(name, priority=priority), placement)


def planned(
    *answered: AnsweredGroup,
    limited: Sequence[AnsweredGroup] = (),
    limits: Limits | None = None,
    head: str = "",
    kept: Kept | None = None,
    gone: Sequence[str] = (),
    alone: Sequence[str] = (),
    may_preempt: Callable[[WaitingGroup], bool] = lambda _: False,
) -> Round:
    known = RoundInput(
        head=head,
        kept=kept or Kept(),
        limits=cast("LimitRound", limits or Limits()),
        may_get=lambda waiting, _: waiting.uid not in gone,
        is_alone=lambda uid: uid in alone,
        may_preempt=may_preempt,
    )
    return plan_round(limited, answered, known)


def names(groups: Sequence[WaitingGroup] | Sequence[AnsweredGroup]) -> list[str]:
    return [each.waiting.uid if isinstance(each, AnsweredGroup) else each.uid for each in groups]


def test_who_has_a_place_gets_it_and_who_has_none_is_told_why() -> None:
    found = planned(placed("one", 0), refused("two"), placed("three", 1))
    assert names(found.allocate) == ["one", "three"]
    assert [claim.metadata.name for each in found.allocate for claim, _ in each.allocations] == ["one", "three"]
    assert names(found.without_place) == ["two"]
    assert (found.void, found.make_room, found.give_back) == ([], [], [])


def test_what_was_handed_back_meanwhile_is_asked_about_again_and_so_is_who_lacked_it() -> None:
    found = planned(placed("gone", 0), refused("two"), placed("three", 1), gone=["gone"])
    assert names(found.void) == ["gone", "two"]
    assert names(found.allocate) == ["three"]
    assert found.without_place == []


def test_what_a_limit_forbids_may_be_what_the_next_lacked() -> None:
    found = planned(placed("over", 0), refused("two"), limits=Limits("over"))
    assert (names(found.without_place), found.limited, names(found.void)) == (["over"], ["over"], ["two"])


def test_a_group_that_a_limit_forbids_everything_holds_nothing_meanwhile() -> None:
    loose = [a_claim("loose")]
    limited = AnsweredGroup(a_group("limited", loose=loose), GroupPlacement([], "a limit", is_hopeless=True))
    found = planned(placed("one", 0), limited=[limited])
    assert (found.limited, names(found.without_place), names(found.allocate)) == (["limited"], ["limited"], ["one"])
    assert found.give_back == [(loose[0], cannot_start(""))]


def test_what_a_part_has_is_given_back_where_the_rest_finds_no_place_but_not_without_an_answer_for_all() -> None:
    each = AnsweredGroup(a_group("part", loose=[a_claim("loose")]), NONE)
    assert [claim.metadata.name for claim, _ in planned(each).give_back] == ["loose"]
    assert planned(each, alone=["part"]).give_back == []


def test_room_is_made_for_who_found_none_and_those_that_may_not_outrank_it_are_asked_again() -> None:
    asked = (
        refused("high", priority=2),
        placed("equal", 0, priority=2),
        refused("nameless", priority=None),
        placed("higher", 1, priority=3),
    )
    found = planned(*asked, may_preempt=lambda waiting: waiting.uid == "high")
    assert names(found.make_room) == ["high"]
    assert names(found.void) == ["equal", "nameless"]
    assert names(found.allocate) == ["higher"]
    assert planned(refused("high", HOPELESS), may_preempt=lambda _: True).make_room == []
    assert planned(refused("high"), alone=["high"], may_preempt=lambda _: True).make_room == []


def test_what_the_head_gets_or_lacks_is_kept_for_it() -> None:
    found = planned(placed("head", 0), head="head")
    device = frozenset({a_device_key("node-0/gpu-0")})
    assert (found.kept.uid, found.kept.devices) == ("head", device)
    assert {each.name for each in found.kept.claims} == {"head"}
    lacks: list[DeviceKey] = [a_device_key("node-0/gpu-1")]
    found = planned(refused("head", msgspec.structs.replace(NONE, kept=lacks)), head="head")
    assert (found.kept.uid, found.kept.devices) == ("head", frozenset(lacks))


def test_what_was_kept_for_a_group_is_kept_no_longer_once_it_has_a_place_elsewhere() -> None:
    kept = Kept("one", frozenset({a_device_key("node-0/gpu-1")}))
    assert planned(placed("one", 0), kept=kept).kept == Kept()
    assert planned(placed("two", 0), kept=kept).kept == kept


def test_a_round_is_read_by_people() -> None:
    assert str(planned()) == "nothing"
    found = planned(placed("one", 0), refused("two"), placed("gone", 1), head="one", gone=["gone"])
    assert str(found) == (
        "allocate default/one; no place for default/two: no device is free; ask again about default/gone; "
        "keep 1 devices for one"
    )
