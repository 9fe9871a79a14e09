"""The order of the steps by which a GPU is handed over from kube-scheduler to Draco and back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from draco.allocation.ownership.handover import GpuPlace, HandoverInput, HandoverPlan, Handovers

SETTLE_S = 5.0
GPU = GpuPlace("gpu.nvidia.com", "node-1", "gpu-0")
ONE, NONE = frozenset({GPU}), frozenset[GpuPlace]()


def plan(
    handovers: Handovers, now_s: float, *, wanted: bool, tainted: bool, registered: bool, leads: bool = True
) -> HandoverPlan:
    seen = HandoverInput(
        wanted=ONE if wanted else NONE,
        tainted=ONE if tainted else NONE,
        registered=ONE if registered else NONE,
        leads=leads,
    )
    return handovers.plan(seen, now_s)


def test_a_gpu_is_tainted_then_registered_then_given_out_with_a_pause_after_each_step() -> None:
    handovers = Handovers(SETTLE_S)
    first = plan(handovers, 0.0, wanted=True, tainted=False, registered=False)
    assert (first.taint, first.register, first.owned, first.look_again_s) == (ONE, NONE, NONE, None)
    tainted = plan(handovers, 10.0, wanted=True, tainted=True, registered=False)
    assert (tainted.register, tainted.look_again_s) == (NONE, 5.0)
    assert plan(handovers, 14.9, wanted=True, tainted=True, registered=False).register == NONE
    assert plan(handovers, 15.0, wanted=True, tainted=True, registered=False).register == ONE
    registered = plan(handovers, 16.0, wanted=True, tainted=True, registered=True)
    assert (registered.register, registered.owned, registered.look_again_s) == (ONE, NONE, 5.0)
    assert plan(handovers, 21.0, wanted=True, tainted=True, registered=True).owned == ONE


def test_on_the_way_back_draco_stops_at_once_and_the_taint_goes_last() -> None:
    handovers = Handovers(SETTLE_S)
    plan(handovers, 0.0, wanted=True, tainted=True, registered=True)
    assert plan(handovers, 5.0, wanted=True, tainted=True, registered=True).owned == ONE
    stops = plan(handovers, 6.0, wanted=False, tainted=True, registered=True)
    assert (stops.owned, stops.register, stops.taint) == (NONE, NONE, ONE)
    let_go = plan(handovers, 7.0, wanted=False, tainted=True, registered=False)
    assert (let_go.taint, let_go.look_again_s) == (ONE, 5.0)
    assert plan(handovers, 12.0, wanted=False, tainted=True, registered=False).taint == NONE


def test_a_gpu_whose_taint_is_gone_is_let_go_and_comes_back_by_all_steps() -> None:
    """An agent of an older version took over, or somebody published something else."""
    handovers = Handovers(SETTLE_S)
    plan(handovers, 0.0, wanted=True, tainted=True, registered=True)
    assert plan(handovers, 5.0, wanted=True, tainted=True, registered=True).owned == ONE
    bare = plan(handovers, 6.0, wanted=True, tainted=False, registered=True)
    assert (bare.owned, bare.register, bare.taint) == (NONE, NONE, ONE)
    assert plan(handovers, 7.0, wanted=True, tainted=True, registered=False).register == NONE


def test_a_new_leader_gives_nothing_out_before_the_pause() -> None:
    """The previous leader may have written something a moment ago."""
    assert plan(Handovers(SETTLE_S), 100.0, wanted=True, tainted=True, registered=True).owned == NONE


def test_who_begins_to_lead_enters_itself_and_gives_out_when_everybody_knows() -> None:
    handovers = Handovers(SETTLE_S)
    first = plan(handovers, 0.0, wanted=True, tainted=True, registered=True, leads=False)
    assert (first.enter, first.register, first.owned, first.look_again_s) == (True, ONE, NONE, 0.0)
    entered = plan(handovers, 3.0, wanted=True, tainted=True, registered=True)
    assert (entered.enter, entered.owned, entered.look_again_s) == (False, NONE, 5.0)
    assert plan(handovers, 7.9, wanted=True, tainted=True, registered=True).owned == NONE
    assert plan(handovers, 8.0, wanted=True, tainted=True, registered=True).owned == ONE


def test_who_is_not_named_any_more_stops_at_once_and_starts_from_the_beginning() -> None:
    handovers = Handovers(SETTLE_S)
    plan(handovers, 0.0, wanted=True, tainted=True, registered=True)
    assert plan(handovers, 5.0, wanted=True, tainted=True, registered=True).owned == ONE
    other = plan(handovers, 6.0, wanted=True, tainted=True, registered=True, leads=False)
    assert (other.enter, other.register, other.owned) == (True, ONE, NONE)
    assert plan(handovers, 7.0, wanted=True, tainted=True, registered=True).owned == NONE
    assert plan(handovers, 12.0, wanted=True, tainted=True, registered=True).owned == ONE


@pytest.mark.parametrize("write_s", [0.1, SETTLE_S - 1e-9, SETTLE_S, 3 * SETTLE_S])
@pytest.mark.parametrize("leads", [True, False])
def test_however_long_a_write_takes_it_is_looked_again_until_all_is_given_out(*, leads: bool, write_s: float) -> None:
    """As the operator does: after each write it plans from what it has written, and looks again when the plan says so."""
    handovers, now_s, registered = Handovers(SETTLE_S), 0.0, False
    while not (made := plan(handovers, now_s, wanted=True, tainted=True, registered=registered, leads=leads)).owned:
        if made.enter or bool(made.register) != registered:
            registered, leads = bool(made.register), True
            now_s += write_s
            made = plan(handovers, now_s, wanted=True, tainted=True, registered=registered, leads=leads)
        assert made.look_again_s is not None
        assert now_s < 10 * (SETTLE_S + write_s)
        now_s += max(made.look_again_s, 0.01)


def test_nobody_enters_where_no_gpu_is_dracos_or_is_to_be() -> None:
    handovers = Handovers(SETTLE_S)
    assert not plan(handovers, 0.0, wanted=False, tainted=False, registered=False, leads=False).enter
    assert plan(handovers, 1.0, wanted=True, tainted=False, registered=False, leads=False).enter
    assert plan(handovers, 2.0, wanted=False, tainted=False, registered=True, leads=False).enter


class TwoWriters(RuleBasedStateMachine):
    """Everybody sees a write within the pause, but at an unpredictable moment of it.

    Operators die at any moment, or stall while the next one leads, and may then write what they had decided before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.wanted = False
        self.taint_wanted = False
        self.register = False
        self.tainted = False
        self.operator, self.leader = 1, 0
        """The operator that holds the Lease, and the one named in the register."""
        self.changed_s = dict.fromkeys(("taint", "register", "leader"), float("-inf"))
        self.handovers = Handovers(SETTLE_S)
        self.owned = False

    @initialize(is_handed_over=st.booleans())
    def begins(self, *, is_handed_over: bool) -> None:
        """Begin with what an earlier leader left."""
        self.wanted = self.taint_wanted = self.tainted = self.register = is_handed_over

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.5, 5.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def a_policy_changes(self) -> None:
        self.wanted = not self.wanted

    @rule(is_written=st.booleans())
    def the_operator_plans(self, *, is_written: bool) -> None:
        """A write may fail: another operator wrote at the same time, or no API server answers."""
        made = plan(
            self.handovers,
            self.now_s,
            wanted=self.wanted,
            tainted=self.tainted,
            registered=self.register,
            leads=self.leader == self.operator,
        )
        self.owned = bool(made.owned)
        self.taint_wanted = bool(made.taint)
        if not is_written:
            return
        if bool(made.register) != self.register:
            self.register, self.changed_s["register"] = bool(made.register), self.now_s
        if made.enter:
            self.leader, self.changed_s["leader"] = self.operator, self.now_s

    @precondition(lambda self: self.tainted != self.taint_wanted)
    @rule()
    def the_agent_publishes(self) -> None:
        self.tainted, self.changed_s["taint"] = self.taint_wanted, self.now_s

    @rule()
    def another_operator_leads(self) -> None:
        """The previous leader has died, or is stalled with writes in flight."""
        self.operator += 1
        self.handovers, self.owned = Handovers(SETTLE_S), False

    @invariant()
    def who_gives_out_is_alone(self) -> None:
        """Some API server may still use the previous register, and some scheduler the previous slices."""
        register_is_seen = self.now_s - self.changed_s["register"] >= SETTLE_S
        others_may_write = not self.register or not register_is_seen
        draco_may_write = self.owned and (self.register or not register_is_seen)
        assert not (others_may_write and draco_may_write and not self._scheduler_is_away())

    @invariant()
    def who_led_before_may_not_allocate_any_more_once_another_gives_out(self) -> None:
        """Some API server may still use the previous register."""
        is_seen = self.leader == self.operator and self.now_s - self.changed_s["leader"] >= SETTLE_S
        assert not self.owned or is_seen

    def _scheduler_is_away(self) -> bool:
        return self.tainted and self.now_s - self.changed_s["taint"] >= SETTLE_S


TestTwoWriters = TwoWriters.TestCase
TestTwoWriters.settings = settings(max_examples=1000)


def test_a_register_that_says_the_same_and_is_another_one_starts_the_pause_from_the_beginning() -> None:
    handovers = Handovers(SETTLE_S)
    plan(handovers, 0.0, wanted=True, tainted=True, registered=True)
    assert plan(handovers, 5.0, wanted=True, tainted=True, registered=True).owned == ONE
    handovers.begin_again()
    assert plan(handovers, 6.0, wanted=True, tainted=True, registered=True).owned == NONE
    assert plan(handovers, 11.0, wanted=True, tainted=True, registered=True).owned == ONE
