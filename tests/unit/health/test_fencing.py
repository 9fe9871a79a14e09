"""Which nodes are fenced, judged by what was seen of their agents' leases."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco.health.fencing import AgentSigns, FencingTerms, plan_fencing
from draco.resources.names import NodeName

LEASE_S = 20.0


def an_agent(number: int = 0, silent_s: float | None = 1.0, **more: object) -> AgentSigns:
    renewed = {"renewed_s": silent_s} if silent_s is not None else {}
    fields = {"node": NodeName(f"n{number:04}"), "lease_s": LEASE_S, "silent_s": silent_s, **renewed, **more}
    return msgspec.convert(fields, AgentSigns)


def healthy(count: int, first: int = 100) -> list[AgentSigns]:
    return [an_agent(first + number) for number in range(count)]


@pytest.mark.parametrize(("silent_s", "fenced"), [(0.0, False), (19.99, False), (20.0, True), (1e6, True)])
def test_an_agent_is_fenced_when_its_lease_has_run_out_and_not_before(silent_s: float, fenced: bool) -> None:
    plan = plan_fencing([an_agent(silent_s=silent_s), *healthy(9)])
    assert plan.fence == (("n0000",) if fenced else ())


def test_an_agent_that_never_had_a_lease_is_left_alone() -> None:
    plan = plan_fencing([an_agent(silent_s=None), *healthy(9)])
    assert (plan.empty, plan.agents, plan.look_again_s) == (True, 9, 19.0)


def test_the_only_agent_is_fenced_too() -> None:
    assert plan_fencing([an_agent(silent_s=21)]).fence == ("n0000",)


def test_what_offers_nothing_is_neither_fenced_nor_counted_and_its_fence_is_lifted() -> None:
    gone = [an_agent(number, silent_s=1e3, offers=False) for number in range(5)]
    plan = plan_fencing([*gone, an_agent(9, silent_s=21), *healthy(4)])
    assert (plan.fence, plan.agents, plan.suspended) == (("n0009",), 5, False)
    fenced = msgspec.structs.replace(gone[0], fenced=True)
    assert plan_fencing([fenced]).lift == ("n0000",)


def test_the_first_lease_that_runs_out_in_a_mass_outage_is_not_fenced_though_the_others_have_not_run_out() -> None:
    """Agents renew at different times: their leases expire one by one within a quarter of the duration."""
    silent = [an_agent(number, silent_s=20.0 - 5.0 * number / 10) for number in range(10)]
    plan = plan_fencing([*silent, *healthy(10)])
    assert (plan.stale, plan.fence, plan.suspended) == (("n0000",), (), True)


def test_up_to_two_agents_are_never_a_mass_outage() -> None:
    plan = plan_fencing([an_agent(number, silent_s=30) for number in range(2)])
    assert (len(plan.fence), plan.suspended) == (2, False)


@pytest.mark.parametrize(("dead", "suspended"), [(30, False), (31, True)])
def test_more_than_the_share_is_a_mass_outage(dead: int, suspended: bool) -> None:
    plan = plan_fencing([an_agent(number, silent_s=30) for number in range(dead)] + healthy(100 - dead))
    assert (plan.suspended, len(plan.fence)) == (suspended, 0 if suspended else dead)


def test_fences_stay_in_a_mass_outage_and_nothing_is_suspended_where_nobody_waits_to_be_fenced() -> None:
    plan = plan_fencing([an_agent(number, silent_s=30, fenced=True) for number in range(8)] + healthy(2))
    assert (len(plan.keep), plan.lift, plan.fence, plan.suspended) == (8, (), (), False)


@pytest.mark.parametrize(
    ("signs", "lifted"),
    [
        ({"renewed_s": 1.0}, True),
        ({"renewed_s": None}, False),  # a watcher that has just started knows only that the lease exists
        ({"renewed_s": 25.0, "silent_s": 2.0}, False),  # the watch was interrupted: no sign of life
        ({"renewed_s": 1.0, "consistent": False}, False),
    ],
)
def test_a_fence_is_lifted_when_the_lease_was_seen_to_change_and_the_report_is_current(
    signs: dict[str, object], lifted: bool
) -> None:
    plan = plan_fencing([an_agent(fenced=True, **{"silent_s": 1.0, **signs}), *healthy(9)])  # type: ignore[arg-type]
    assert (plan.lift, plan.keep) == ((("n0000",), ()) if lifted else ((), ("n0000",)))


def test_it_says_when_to_look_again() -> None:
    assert plan_fencing([an_agent(0, silent_s=4), an_agent(1, silent_s=17)]).look_again_s == 3
    assert plan_fencing([an_agent(0, silent_s=40)]).look_again_s is None


def test_a_plan_says_what_it_is() -> None:
    plan = plan_fencing([an_agent(number, silent_s=30) for number in range(4)])
    assert str(plan) == "4 of 4 agents silent: fence 0 nodes, lift 0; fencing is suspended"


SIGNS = st.builds(
    AgentSigns,
    node=st.integers(0, 40).map(lambda number: NodeName(f"n{number}")),
    lease_s=st.just(LEASE_S),
    silent_s=st.none() | st.floats(0, 60),
    renewed_s=st.none() | st.floats(0, 60),
    offers=st.booleans(),
    consistent=st.booleans(),
    fenced=st.booleans(),
)


@given(st.lists(SIGNS, unique_by=lambda each: each.node, max_size=40), st.floats(0, 1))
def test_laws(agents: list[AgentSigns], share: float) -> None:
    plan = plan_fencing(agents, FencingTerms(share=share))
    by_node = {each.node: each for each in agents}
    assert not set(plan.fence) & set(plan.lift)
    assert {*plan.keep, *plan.lift} == {each.node for each in agents if each.fenced}
    for node in plan.fence:
        assert by_node[node].is_silent_for(1)
        assert not by_node[node].fenced
    for node in plan.lift:
        assert by_node[node].back or not by_node[node].offers
    silent = sum(each.is_silent_for(0.5) for each in agents)
    if silent >= 3 and silent > share * plan.agents:
        assert plan.fence == ()
    else:
        assert set(plan.fence) == {each.node for each in agents if each.is_silent_for(1) and not each.fenced}
