"""The law of fences: a node is fenced only after its agent's lease expired.

Told of each change of a lease and of a rule. They come on different watches, so a fence is judged a moment later, by the renewals
stored in etcd before it. All run on one machine, so the agents' clocks and the API server's agree. Nothing that the operator says
about a fence is trusted. Does no I/O.
"""

from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from tests.adversary.cluster.observer.service import AGENT_LOST
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, name, revision

AGENT_LEASE = "draco-agent-"
WEIGHED_AFTER_S = 2.0
STAMP_S = 1.0
"""Resolution of the API server's timestamps."""
CROSSED_S = 2.0
"""How late a renewal may be stored before a fence that was decided without it."""
RENEWALS = 64
"""Renewals remembered per agent: several minutes."""


class Renewal(NamedTuple):
    """One renewal: time, revision, and lease duration."""

    at: datetime
    revision: int
    lasts_s: float


class Fence(NamedTuple):
    """A rule that fences a node, first seen `at`."""

    at: float
    node: str
    rule: Object


class FenceLaw:
    """Remembers each agent's renewals and judges each new fence by them."""

    def __init__(self) -> None:
        self.fences = 0
        self._renewed: dict[str, deque[Renewal]] = {}
        self._known: set[str] = set()
        self._doubted: list[Fence] = []

    def renewed(self, lease: Object) -> None:
        """A lease was written."""
        stamped = lease["spec"].get("renewTime")
        if not lease["metadata"]["name"].startswith(AGENT_LEASE) or not stamped:
            return
        node = lease["metadata"]["name"].removeprefix(AGENT_LEASE)
        lasts_s = float(lease["spec"].get("leaseDurationSeconds") or 0)
        known = self._renewed.setdefault(node, deque(maxlen=RENEWALS))
        known.append(Renewal(datetime.fromisoformat(stamped), revision(lease), lasts_s))

    def rule_changed(self, before: Object | None, after: Object | None, now: float) -> None:
        """A rule was written or deleted. Rewriting a rule makes no new fence."""
        if before is not None or after is None or after["spec"]["taint"]["key"] != AGENT_LOST:
            return
        if after["metadata"]["uid"] in self._known:
            return  # a known rule: rules were not served for a while
        self._known.add(after["metadata"]["uid"])
        self.fences += 1
        self._doubted.append(Fence(now, (after["spec"].get("deviceSelector") or {}).get("pool") or "", after))

    def weighed(self, now: float, *, grace_s: float) -> Iterator[Suspicion]:
        """Fences without a cause. `grace_s` is how late the operator may have been lately for lack of a processor."""
        for one in [each for each in self._doubted if now - each.at >= WEIGHED_AFTER_S]:
            self._doubted.remove(one)
            if text := self._without_cause(one, CROSSED_S + grace_s):
                key = str(one.rule["metadata"]["uid"])
                yield Suspicion(
                    "fenced without cause", key, f"{name(one.rule)} fences {one.node or 'all nodes'}, {text}"
                )

    def _without_cause(self, fence: Fence, crossed_s: float) -> str:
        made = datetime.fromisoformat(fence.rule["metadata"]["creationTimestamp"])
        stored = [each for each in self._renewed.get(fence.node, ()) if each.revision < revision(fence.rule)]
        if not stored:
            return "whose agent had no lease"
        last = next((each for each in reversed(stored) if (made - each.at).total_seconds() > crossed_s), None)
        if last is None and (made - stored[0].at).total_seconds() > CROSSED_S:
            return ""  # the operator may have been too late to see the renewal
        if last is None:
            return "whose agent had only just begun to renew its lease"
        silent_s = (made - last.at).total_seconds() + STAMP_S
        if silent_s >= last.lasts_s:
            return ""
        return f"whose agent had renewed its lease {silent_s:.0f} s before at most, and it lasts {last.lasts_s:.0f} s"
