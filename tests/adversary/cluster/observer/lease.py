"""The law of the lease: it is renewed all the time, and taken over in time if its holder was killed.

Owns the lease's history. Gaps come from the holder's own timestamps, so they do not include the observer's lag.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from tests.adversary.cluster.observer.fairness import Fairness, Pace
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World

LEASE = "draco-operator"
QUICK_S = 3.0
"""The longest gap between renewals if nothing else is to blame."""
TAKEOVER_GRACE_S = 5.0
"""Two attempts of a waiting replica, with jitter, and its writes."""
GIVEN_UP_WITHIN_S = 5.0
"""A leader that is told to end releases the lease when its writes are done."""
LEADING_FOR_S = 3.0
"""A new leader first reads what the previous one left."""
WITHOUT_WHOM_S = 60.0
LOSES_LEASE_AFTER_S = 10.0
"""A leader ends after this long without a renewal."""
SEEN_WITHIN_S = 5.0
"""How much later the observer sees that at the latest."""


class LeaseLaw:
    """Told of each change of the lease, and by `killed` of each deliberate end of its holder."""

    def __init__(
        self, fairness: Fairness, pace: Pace, starved_s: Callable[[str, float], float] = lambda _who, _since: 0.0
    ) -> None:
        """`starved_s` returns how long a holder has waited for a processor since a time."""
        self.oldest_s = 0.0
        self.holder = ""
        self.takeovers: list[float] = []
        self.late: Counter[str] = Counter()
        self._fairness = fairness
        self._pace = pace
        self._starved_s = starved_s
        self._killed_at: float | None = None
        self._renewed_at: float | None = None
        self._leads_since = 0.0
        self.steady_since = 0.0
        """Since when the holder has neither changed nor been suspended."""
        self._resumed = False
        self._gently = False

    def told_to_end(self, now: float) -> None:
        """The holder was told to end and releases the lease first.

        Ignored if the holder was killed and no replica has taken over yet: its successor has no lease to release.
        """
        if self._killed_at is None:
            self.killed(now)
            self._gently = True

    def killed(self, now: float) -> None:
        """The holder, or every replica that could hold the lease, was killed or suspended."""
        self._killed_at = self.steady_since = now
        self._resumed = self._gently = False

    def resumed(self) -> None:
        """The suspended holder continues. It still has the lease unless another replica took it."""
        self._resumed = True

    def renewed(self, before: Object | None, after: Object, now: float) -> Iterator[Suspicion]:
        """The lease was written."""
        if after["metadata"]["name"] != LEASE:
            return
        spec = after["spec"]
        old = before["spec"] if before else {}
        last, self._renewed_at = self._renewed_at, now
        self.holder = str(spec.get("holderIdentity") or "")
        if old.get("holderIdentity") != spec.get("holderIdentity"):
            yield from self._taken_over(old, spec, now)
            return
        if self._killed_at is not None:
            if self._resumed:
                self._killed_at, self.steady_since = None, now
            return
        if not spec.get("renewTime") or not old.get("renewTime") or last is None:
            return
        gap = (_time(spec["renewTime"]) - _time(old["renewTime"])).total_seconds()
        start = now - gap
        down = self._fairness.was_down("api", start - QUICK_S, now)
        if down:
            return
        self.oldest_s = max(self.oldest_s, gap)
        starved_s = self._starved_s(spec.get("holderIdentity") or "", start - QUICK_S)
        allowed = QUICK_S + 2 * self._pace.lost_s(start - QUICK_S, now) + starved_s
        if gap > allowed:
            text = f"{spec.get('holderIdentity')} renewed the lease after {gap:.1f} s; {allowed:.1f} s would be in time here"
            yield Suspicion("lease late", f"{spec.get('holderIdentity')} {spec['renewTime']}", text)

    def _taken_over(self, old: Object, new: Object, now: float) -> Iterator[Suspicion]:
        """The lease has another holder or none."""
        if not new.get("holderIdentity"):
            return
        self._leads_since = self.steady_since = now
        if self._killed_at is not None:
            self.takeovers.append(now - self._killed_at)
            self._killed_at = None
            return
        since = now - float(new.get("leaseDurationSeconds") or 0) - TAKEOVER_GRACE_S
        down = self._fairness.was_down("api", since, now) + self._fairness.was_down("replicas", since, now)
        who = str(old.get("holderIdentity") or "")
        if who and not down and not self.may_be_lost(since, now, self._starved_s(who, since)):
            text = f"{new['holderIdentity']} took the lease over from {who}, which nobody had killed"
            yield Suspicion("lease lost", f"{who} {new['holderIdentity']}", text)

    def may_be_lost(self, since: float, now: float, starved_s: float) -> bool:
        """Whether a slow machine may have kept a leader from renewing in time, by the same allowance as for late renewals.

        `starved_s` is how long the leader was without a processor.
        """
        return QUICK_S + 2 * self._pace.lost_s(since, now) + starved_s >= LOSES_LEASE_AFTER_S

    def look(self, world: World, now: float, clock: datetime) -> Iterator[Suspicion]:
        """Violations if the lease has expired or was not taken over in time."""
        lease = _lease(world)
        if lease is None or not lease["spec"].get("renewTime"):
            return
        spec = lease["spec"]
        duration = float(spec.get("leaseDurationSeconds") or 0)
        age = (clock - _time(spec["renewTime"])).total_seconds()
        allowed = duration + 2 * self._pace.lost_s(now - duration, now)
        if self._killed_at is not None:
            since = now - self._killed_at
            down = self._fairness.was_down("api", self._killed_at, now) + self._fairness.was_down(
                "replicas", self._killed_at, now
            )
            before = allowed - duration + GIVEN_UP_WITHIN_S if self._gently else allowed
            limit = before + TAKEOVER_GRACE_S + down
            if since > limit:
                how = "told to end" if self._gently else "killed"
                text = f"nobody took the lease over {since:.1f} s after its holder was {how}; {limit:.1f} s would be in time"
                yield Suspicion("lease not taken over", f"{self._killed_at}", text)
            return
        down = self._fairness.was_down("api", now - age - 1.0, now) + self._fairness.was_down(
            "replicas", now - age - 1.0, now
        )
        if age > allowed + TAKEOVER_GRACE_S + down * 2 + (WITHOUT_WHOM_S if down else 0.0):
            text = (
                f"the lease of {spec.get('holderIdentity') or 'nobody'} is {age:.1f} s old and lasts {duration:.0f} s"
            )
            yield Suspicion("lease stale", f"{spec.get('holderIdentity')} {spec['renewTime']}", text)

    def led(self, world: World, now: float) -> bool:
        """Whether a replica has led for long enough to know the cluster."""
        lease = _lease(world)
        if lease is None or not lease["spec"].get("holderIdentity") or not lease["spec"].get("renewTime"):
            return False
        if self._killed_at is not None:
            return False
        age = (datetime.now(UTC) - _time(lease["spec"]["renewTime"])).total_seconds()
        return age <= float(lease["spec"].get("leaseDurationSeconds") or 0) and now - self._leads_since >= LEADING_FOR_S


def _lease(world: World) -> Object | None:
    return next((each for each in world.leases.values() if each["metadata"]["name"] == LEASE), None)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
