"""Which requests may begin: budgets over all requests."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from draco.maintenance.budgets.admission import BudgetLimit, FailedRequest, StartCandidate, StartDecision, admit
from draco.maintenance.selecting.fleet import PhysicalGpu
from draco.resources.api.maintenance import BudgetScope, MaintenanceBudgetSpec
from draco.resources.names import NVIDIA_DRIVER

NODES = [f"node-{number}" for number in range(3)]
GPUS = [PhysicalGpu(NVIDIA_DRIVER, node, f"GPU-{number}") for node in NODES for number in range(4)]


def a_limit(name: str = "budget", **spec: Any) -> BudgetLimit:
    wanted = MaintenanceBudgetSpec(**spec)
    places = {gpu: gpu.pool if wanted.per is BudgetScope.NODE else "" for gpu in GPUS}
    totals = {place: list(places.values()).count(place) for place in places.values()}
    return BudgetLimit(name=name, spec=wanted, places=places, totals=totals)


def asking(*wanted: Iterable[int]) -> list[StartCandidate]:
    """Requests for these GPUs, oldest first."""
    return [
        StartCandidate(
            uid=str(age),
            name=f"request-{age}",
            age=(False, float(age), ""),
            gpus=frozenset(GPUS[each] for each in gpus),
        )
        for age, gpus in enumerate(wanted)
    ]


def reasons(decided: StartDecision) -> dict[str, str]:
    return {uid: why.reason for uid, why in decided.waiting.items()}


def test_a_large_request_is_not_starved_by_younger_small_ones() -> None:
    decided = admit(asking([0, 1, 2], [3], [4]), {GPUS[5]}, [a_limit(max_devices=3)])
    assert decided.admitted == {}
    assert reasons(decided) == {"0": "BudgetUsedUp", "1": "BudgetUsedUp", "2": "BudgetUsedUp"}


def test_a_request_that_never_fits_says_so_and_holds_up_nobody() -> None:
    decided = admit(asking([0, 1, 2], [3], [4]), (), [a_limit(max_devices=2)])
    assert set(decided.admitted) == {"1", "2"}
    assert reasons(decided) == {"0": "NeverFits"}
    assert "never allows more than 2" in decided.waiting["0"].message


def test_one_that_waits_for_its_node_holds_up_no_other_node() -> None:
    limits = [a_limit("nodes", per=BudgetScope.NODE, max_devices=1), a_limit("all", max_devices=3)]
    decided = admit(asking([0], [1], [4], [8]), (), limits)
    assert set(decided.admitted) == {"0", "2", "3"}
    assert "on node node-0" in decided.waiting["1"].message


def test_a_gpu_that_is_out_of_service_already_counts_once() -> None:
    assert set(admit(asking([0], [0, 1]), (), [a_limit(max_devices=2)]).admitted) == {"0", "1"}


def test_a_gpu_on_its_way_back_counts_and_is_asked_for_again() -> None:
    gone = {GPUS[0], GPUS[1]}
    two = asking([0, 1])
    assert admit(two, gone, [a_limit(max_devices=2)], returning=gone).admitted
    assert reasons(admit(two, gone, [a_limit(max_devices=0)], returning=gone)) == {"0": "NeverFits"}
    assert reasons(admit(asking([0]), gone, [a_limit(max_devices=1)], returning={GPUS[0]})) == {"0": "BudgetUsedUp"}
    assert admit(asking([0]), gone, [a_limit(max_devices=1)], returning={GPUS[1]}).admitted, "somebody keeps it out"


def test_what_was_admitted_keeps_its_place_unless_the_budget_becomes_smaller() -> None:
    both = asking([0], [1])
    assert set(admit(both, (), [a_limit(max_devices=1)], before={"1"}).admitted) == {"1"}
    assert reasons(admit(both, (), [a_limit(max_devices=0)], before={"1"})) == {"0": "NeverFits", "1": "NeverFits"}


def test_a_share_is_rounded_down_but_is_at_least_one_unless_it_is_none() -> None:
    assert [a_limit(max_percent=each).allows("") for each in (0, 1, 25, 26, 100)] == [0, 1, 3, 3, 12]
    assert a_limit(max_percent=50, max_devices=2).allows("") == 2


def test_a_paused_budget_and_too_many_failures_stop_everything_new() -> None:
    assert reasons(admit(asking([0]), (), [a_limit(paused=True)])) == {"0": "Paused"}
    failed = [FailedRequest("broken", frozenset({GPUS[1]}))]
    assert reasons(admit(asking([0]), (), [a_limit(max_failed=0)], failed)) == {"0": "TooManyFailed"}
    assert admit(asking([0]), (), [a_limit(max_failed=1)], failed).admitted


a_budget_spec = st.builds(
    lambda per, number, percent: {"per": per, "max_devices": number, "max_percent": percent},
    st.sampled_from([BudgetScope.CLUSTER, BudgetScope.NODE]),
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 100),
)


@given(
    st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=4), max_size=8),
    st.sets(st.integers(0, 11), max_size=4),
    st.sets(st.integers(0, 11), max_size=4),
    st.lists(a_budget_spec, max_size=3),
    st.integers(0, 8),
)
def test_no_budget_is_ever_exceeded_by_what_is_admitted(
    wanted: list[set[int]], kept: set[int], returning: set[int], specs: list[dict[str, Any]], first: int
) -> None:
    limits = [a_limit(f"budget-{number}", **spec) for number, spec in enumerate(specs)]
    before, back = {GPUS[each] for each in kept}, {GPUS[each] for each in returning - kept}
    decided = admit(asking(*wanted), before | back, limits, returning=back, before={str(each) for each in range(first)})
    taken = set[PhysicalGpu]().union(*decided.admitted.values())
    for limit in limits:
        for place, number in limit.counted(taken - before).items():
            allowed = limit.allows(place)
            assert not number or allowed is None or limit.counted(before | back | taken)[place] <= allowed
    assert decided.admitted.keys() | decided.waiting.keys() == {str(each) for each in range(len(wanted))}
