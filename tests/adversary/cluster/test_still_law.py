"""The law of stillness: endless changes are found, a few successive ones are not."""

from tests.adversary.cluster.observer.still import OFTEN, WITHIN_S, Still
from tests.adversary.cluster.test_observer import a_slice


def published(times: int, every_s: float) -> tuple[Still, float]:
    law, now = Still(), 0.0
    for number in range(times):
        now = number * every_s
        law.slice_changed(a_slice(generation=number), now)
    return law, now


def test_a_pool_that_is_published_over_and_over_is_not_still() -> None:
    law, now = published(3 * OFTEN, every_s=6.0)
    assert [each.key for each in law.restless(now)] == ["node"]
    assert not list(law.restless(now + WITHIN_S))


def test_a_pool_may_change_a_few_times_and_a_generation_may_have_many_slices() -> None:
    law, now = published(OFTEN - 1, every_s=1.0)
    for _ in range(OFTEN):
        law.slice_changed(a_slice(generation=OFTEN - 2), now)
    assert not list(law.restless(now))
    law, now = published(3 * OFTEN, every_s=WITHIN_S / (OFTEN - 1))
    assert not list(law.restless(now))


def test_a_claim_that_is_allocated_over_and_over_is_not_still() -> None:
    law = Still()
    for number in range(OFTEN):
        assert not list(law.restless(number * 2.0))
        law.allocated("tenant/claim", number * 2.0)
        law.allocated(f"tenant/another-{number}", number * 2.0)
    assert [(each.law, each.key) for each in law.restless(OFTEN * 2.0)] == [("not still", "tenant/claim")]
    assert not list(law.restless(OFTEN * 2.0 + WITHIN_S))
