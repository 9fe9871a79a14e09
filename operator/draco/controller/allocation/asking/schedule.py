"""Decides when to ask about each waiting group, the first time and again after it found no place.

Owns the memory of groups without a place and of groups without an answer. Asks nothing and writes nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Final

import msgspec

from draco.controller.allocation.asking.basis import Basis, Wanted
from draco.controller.allocation.asking.releases import Releases
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.view import ClusterView
from draco.controller.workers.pool import Workers
from draco.kube.connect.retry import doubling_s
from draco.placing.groups.group import GroupPlacement
from draco.resources.api.meta import ObjectKey

_GROUPS_AT_ONCE: Final = 64
_SOONEST_S: Final = 0.05
_LATEST_S: Final = 1.0
_REST: Final = 4
"""Rest after a change, as a multiple of the last answer's CPU time, within `_SOONEST_S` and `_LATEST_S`."""
SECOND_LOOK_S: Final = 60.0
"""Age at which an answer is checked again without a reason."""
_CALM: Final = 20
"""After each answer, no unprompted question for this multiple of its CPU time."""
_LONGEST_S: Final = 60.0
"""Maximum backoff for a group that got no answer."""


class NoPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A group without a place: what was known then (`basis`; None if no change matters), what it wanted, and when to ask again.

    If either has changed, ask from `rested_s` on; in any case at `again_s`.
    """

    basis: Basis | None
    wanted: Wanted
    at_s: float
    freed: int
    """`Releases.freed` at that time."""
    rested_s: float
    again_s: float
    why_not: str
    is_hopeless: bool

    def holds(self, waiting: WaitingGroup, basis: Basis) -> bool:
        """Whether the answer still stands, since nothing that it depends on has changed."""
        return self.basis == basis and self.wanted == Wanted.by(waiting)


class AskingSchedule:
    """When to ask about each group, by UID."""

    def __init__(
        self,
        view: ClusterView,
        workers: Workers,
        *,
        preempts_in_s: Callable[[WaitingGroup], float],
        refused_until_s: Callable[[str, float], float],
    ) -> None:
        """`preempts_in_s`: when preemption may help a group. `refused_until_s`: until when nodes are excluded for a pod."""
        self._workers = workers
        self._clock = view.clock
        self._preempts_in_s = preempts_in_s
        self._refused_until_s = refused_until_s
        self._releases = Releases(view)
        self._rest_s = _SOONEST_S
        self._calm_s = float("-inf")
        self._without_place: dict[str, NoPlace] = {}
        self._unanswered: dict[str, int] = {}

    def is_alone(self, uid: str) -> bool:
        """Whether to ask about the group alone, since a batch with it got no answer."""
        return uid in self._unanswered

    def batch(
        self, due: Mapping[str, WaitingGroup], kept_from: Callable[[WaitingGroup], frozenset[str]]
    ) -> dict[str, WaitingGroup]:
        """The oldest group and the next ones of its namespace, so that a batch uses one tenant's budget.

        `due` is in queue order. `kept_from` tells whose devices a group must not get; this is equal within a batch.
        """
        if not due:
            return {}
        oldest, first = next(iter(due.items()))
        if self.is_alone(oldest):
            return {oldest: first}
        kept = kept_from(first)
        batch: dict[str, WaitingGroup] = {}
        claims: set[ObjectKey] = set()
        for uid, each in due.items():
            own = {claim.metadata.key for claim in each.group.claims}
            # Groups that share a claim go into different batches: the first one's placement decides for the next.
            if each.namespace != first.namespace or self.is_alone(uid) or claims & own:
                continue
            if kept_from(each) == kept:
                batch[uid] = each
                claims |= own
            if len(batch) == _GROUPS_AT_ONCE:
                break
        return batch

    def may_find_place(self, uid: str) -> bool:
        """Whether, as far as is known, the group could get a place if others ended."""
        asked = self._without_place.get(uid)
        return asked is None or not (asked.is_hopeless or asked.basis is None)

    def forget_others(self, uids: set[str]) -> None:
        """Forget groups that no longer wait."""
        self._without_place = {uid: each for uid, each in self._without_place.items() if uid in uids}
        self._unanswered = {uid: times for uid, times in self._unanswered.items() if uid in uids}

    def answered(self, uids: Iterable[str], cpu_s: float) -> None:
        """Record an answer and its CPU time."""
        for uid in uids:
            self._unanswered.pop(uid, None)
        self._rest_s = min(max(_SOONEST_S, _REST * cpu_s), _LATEST_S)
        self._calm_s = self._clock.monotonic() + _CALM * cpu_s

    def unanswered(self, uids: Iterable[str], *, alone: bool) -> None:
        """Record that there was no answer in time."""
        for uid in uids:
            self._unanswered[uid] = self._unanswered.get(uid, 0) + alone

    def found_place(self, waiting: WaitingGroup, basis: Basis) -> NoPlace | None:
        """Record that the group gets devices. Return the previous refusal if it should still have stood."""
        asked = self._without_place.pop(waiting.uid, None)
        return asked if asked is not None and asked.holds(waiting, basis) else None

    def found_none(self, waiting: WaitingGroup, placement: GroupPlacement, basis: Basis, since_s: float) -> bool:
        """Record that the group, read at `since_s`, found no place. Return whether that is new."""
        now_s, uid = self._clock.monotonic(), waiting.uid
        is_new = uid not in self._without_place
        out = [pod.metadata.uid for member in waiting.group.members if member.without for pod in member.pods]
        again_s = min((self._refused_until_s(pod, since_s) for pod in out), default=float("inf"))
        known: Basis | None = basis
        if uid in self._unanswered:
            known, again_s = None, now_s + doubling_s(1.0, self._unanswered[uid], _LONGEST_S)
        self._without_place[uid] = NoPlace(
            basis=known,
            wanted=Wanted.by(waiting),
            at_s=now_s,
            freed=self._releases.freed,
            rested_s=now_s + self._rest_s,
            again_s=again_s,
            why_not=placement.why_not,
            is_hopeless=placement.is_hopeless,
        )
        return is_new

    def is_answered(self, waiting: WaitingGroup, basis: Basis) -> bool:
        """Whether the group's refusal still stands."""
        asked = self._without_place.get(waiting.uid)
        return asked is not None and asked.holds(waiting, basis)

    def waits_s(
        self, groups: Mapping[str, WaitingGroup], basis: Basis, is_anything_free: Callable[[], bool]
    ) -> dict[str, float]:
        """Seconds until each group is asked about; infinite if only a change can trigger it. `groups` is in queue order.

        A new group waits while older ones rest: they may need what became free since they were asked about. While any device is
        free, each group is asked about again after a while even without a change.
        """
        now_s, rests_s, found = self._clock.monotonic(), 0.0, {}
        is_free = cache(is_anything_free)
        for uid, each in groups.items():
            asked, may_ask = self._without_place.get(uid), self._workers.may_ask(each.namespace)
            wait_s = self._wait_s(each, asked, basis, now_s, is_free, among=len(groups)) if may_ask else _LATEST_S
            found[uid] = max(wait_s, rests_s) if asked is None else wait_s
            if asked is None or asked.basis is None or asked.is_hopeless or asked.freed == self._releases.freed:
                continue
            if may_ask:  # a tenant over its budget delays nobody
                rests_s = max(rests_s, wait_s)
        return found

    def _wait_s(
        self,
        waiting: WaitingGroup,
        asked: NoPlace | None,
        basis: Basis,
        now_s: float,
        is_anything_free: Callable[[], bool],
        *,
        among: int,
    ) -> float:
        if asked is None:
            return 0.0
        is_same = asked.basis is None or asked.holds(waiting, basis)
        changed_s = float("inf") if is_same else asked.rested_s
        if asked.basis is not None and is_same and now_s >= asked.at_s + SECOND_LOOK_S and is_anything_free():
            changed_s = self._calm_s
        if among > 1:  # the oldest may need all that becomes free, so do not give it away piecemeal
            changed_s = max(changed_s, self._releases.over_s(asked.rested_s))
        # Evict nobody for a group that would still find no place, or whose answer is unknown.
        is_vain = asked.is_hopeless or waiting.uid in self._unanswered
        preempts_s = float("inf") if is_vain else now_s + self._preempts_in_s(waiting)
        return max(0.0, min(changed_s, asked.again_s, preempts_s) - now_s)
