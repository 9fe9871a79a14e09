"""A burst first, then a steady rate."""

from draco.kube.rate_limit import Budget, RateLimit

LIMIT = RateLimit(burst=3, refill_s=60.0)


def spend(budget: Budget, times: int, at_s: float) -> Budget:
    for _ in range(times):
        budget = budget.spent(at_s)
    return budget


def test_a_burst_is_free_and_what_follows_waits_for_the_refill() -> None:
    budget = LIMIT.unspent(100.0)
    assert [spend(budget, times, 100.0).wait_s(100.0) for times in (0, 1, 2, 3)] == [0, 0, 0, 60]
    assert spend(budget, 3, 100.0).wait_s(115.0) == 45
    assert spend(budget, 3, 100.0).wait_s(160.0) == 0


def test_a_budget_is_whole_again_in_time_and_never_more_than_that() -> None:
    spent = spend(LIMIT.unspent(0.0), 2, 0.0)
    assert not spent.is_whole(119.0)
    assert spent.is_whole(120.0)
    assert spent.left_at(1e9) == LIMIT.burst


def test_what_is_done_in_spite_of_the_limit_leaves_no_debt() -> None:
    assert spend(LIMIT.unspent(0.0), 50, 0.0).wait_s(0.0) == 60
