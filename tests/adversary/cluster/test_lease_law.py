"""The law of the lease, on example histories: late renewals are violations, unless the machine caused them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.cluster.observer.fairness import Fairness, Pace, Starvation
from tests.adversary.cluster.observer.lease import LeaseLaw
from tests.adversary.cluster.observer.observer import TWIN_EVERY_S
from tests.adversary.cluster.observer.world import World

Document = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_lease(holder: str, renewed_s: float) -> Document:
    stamp = (NOW + timedelta(seconds=renewed_s)).isoformat()
    spec = {"holderIdentity": holder, "renewTime": stamp, "leaseDurationSeconds": 15}
    return {"metadata": {"name": "draco-operator", "uid": "lease"}, "spec": spec}


class LeaseHistory:
    """A lease over time: both clocks are seconds since the start."""

    def __init__(self, starved_s: Callable[[str, float], float] = lambda _who, _since: 0.0) -> None:
        self.fairness, self.pace, self.world = Fairness(), Pace(TWIN_EVERY_S), World()
        self.law = LeaseLaw(self.fairness, self.pace, starved_s)
        self.found: list[str] = []

    def renewed(self, holder: str, at: float) -> None:
        before, after = self.world.leases.get("lease"), a_lease(holder, at)
        self.found += [each.law for each in self.law.renewed(before, after, at)]
        self.world.leases["lease"] = after

    def looked(self, at: float) -> list[str]:
        found = [each.law for each in self.law.look(self.world, at, NOW + timedelta(seconds=at))]
        return found + self.found


def test_a_lease_that_is_renewed_late_is_told() -> None:
    lease = LeaseHistory()
    for at in (0.0, 2.0, 4.1):
        lease.renewed("a", at)
    assert not lease.looked(4.2)
    lease.renewed("a", 7.6)
    assert lease.looked(7.7) == ["lease late"]


def beats(pace: Pace, *stalls: tuple[float, float], until: float) -> None:
    """A twin's writes on a machine that stalls at a time for some seconds."""
    last = due = 0.0
    while due <= until:
        now = max([due, *(start + lasts for start, lasts in stalls if start <= due < start + lasts)])
        pace.renewed(now, now - last)
        last, due = now, now + TWIN_EVERY_S


STALLS = {
    "one stall": ([(3.6, 1.5)], 5.5, False),
    "two stalls": ([(2.1, 0.8), (3.6, 0.8)], 5.5, False),
    "a stall that is too short to tell": ([(3.6, 0.6)], 5.5, True),
    "a stall long before": ([(0.2, 1.5)], 9.0, True),
}


@pytest.mark.parametrize(("stalls", "renewed", "late"), STALLS.values(), ids=STALLS)
def test_a_lease_may_be_as_late_as_the_machine_stalls(
    stalls: list[tuple[float, float]], renewed: float, late: bool
) -> None:
    lease = LeaseHistory()
    lease.renewed("a", renewed - 5.5)
    lease.renewed("a", renewed - 3.5)
    beats(lease.pace, *stalls, until=renewed)
    lease.renewed("a", renewed)
    assert lease.looked(renewed + 0.1) == ["lease late"] * late


def test_a_stall_counts_before_the_twin_is_heard_of_again() -> None:
    lease = LeaseHistory()
    lease.renewed("a", 0.0)
    lease.renewed("a", 2.0)
    beats(lease.pace, until=3.6)
    lease.renewed("a", 5.5)
    assert not lease.looked(5.6)


def test_a_lease_may_be_as_late_as_its_holder_waited_for_a_processor(tmp_path: Path) -> None:
    starvation = Starvation(tmp_path)
    for thread in ("7", "8"):
        (tmp_path / "7/task" / thread).mkdir(parents=True)
    for now, main, other in ((0.0, 10**9, 0), (4.0, 10**9, 0), (7.0, 15 * 10**8, 10**9), (7.5, 17 * 10**8, 10**9)):
        (tmp_path / "7/task/7/schedstat").write_text(f"0 {main} 1\n")
        (tmp_path / "7/task/8/schedstat").write_text(f"0 {other} 1\n")
        starvation.sample(7, now)
    assert starvation.waited_s(7, 6.0) == pytest.approx(1.2)
    assert starvation.waited_s(7, 7.2) == pytest.approx(0.2)
    assert starvation.waited_s(8, 0.0) == 0.0
    for since_s, late in ((1.2, []), (0.1, ["lease late"])):
        lease = LeaseHistory(lambda _who, _since, since_s=since_s: since_s)
        for at in (0.0, 2.0, 6.1):
            lease.renewed("a", at)
        assert lease.looked(6.2) == late


@pytest.mark.parametrize(("starved_s", "stands_still_s", "may"), [(7.5, 0, True), (6.0, 0, False), (0.0, 4.5, True)])
def test_a_lease_may_be_lost_where_the_machine_kept_its_holder_from_it(
    starved_s: float, stands_still_s: float, may: bool
) -> None:
    lease = LeaseHistory(lambda _who, _since: starved_s)
    lease.renewed("a", 0.0)
    beats(lease.pace, (2.0, stands_still_s), until=18.0)
    assert lease.law.may_be_lost(0.0, 18.0, starved_s) is may
    lease.renewed("b", 18.0)
    assert lease.looked(18.5) == ([] if may else ["lease lost"])


def test_a_lease_that_nobody_renews_is_told() -> None:
    lease = LeaseHistory()
    lease.renewed("a", 0.0)
    assert not lease.looked(19.0)
    assert lease.looked(21.0) == ["lease stale"]


def test_a_lease_whose_holder_was_killed_is_taken_over_in_time() -> None:
    lease = LeaseHistory()
    lease.renewed("a", 0.0)
    lease.law.killed(1.0)
    assert not lease.looked(20.0)
    assert lease.looked(22.0) == ["lease not taken over"]
    lease.renewed("b", 22.5)
    assert not lease.looked(23.0)


def test_a_holder_that_is_told_to_end_gives_the_lease_up_sooner_but_not_one_that_was_killed_before() -> None:
    for killed_at, found in ((None, ["lease not taken over"]), (1.0, [])):
        lease = LeaseHistory()
        lease.renewed("a", 0.0)
        if killed_at is not None:
            lease.law.killed(killed_at)
        lease.law.told_to_end(2.0)
        assert not lease.looked(11.0)
        assert lease.looked(13.0) == found
    assert lease.looked(22.0) == ["lease not taken over"]


def test_a_lease_that_a_living_holder_loses_is_told() -> None:
    lease = LeaseHistory()
    lease.renewed("a", 0.0)
    lease.renewed("b", 16.0)
    assert lease.looked(16.5) == ["lease lost"]


def test_a_lease_may_wait_while_the_api_server_is_down() -> None:
    lease = LeaseHistory()
    lease.renewed("a", 0.0)
    lease.renewed("a", 2.0)
    lease.fairness.down("api", 3.0)
    lease.fairness.up("api", 9.0, grace_s=5.0)
    lease.renewed("a", 12.0)
    assert not lease.looked(12.1)
