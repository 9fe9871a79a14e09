"""Whose turn it is: when each group that waits is asked about, at first and again after it found no place.

Owns what is remembered of groups without a place, and of those that got no answer. Asks nothing and writes nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Final

import msgspec

from draco.controller.allocation.asking.basis import Basis, Wanted
from draco.controller.allocation.asking.releases import Releases
from draco.controller.allocation.waiting_group import WaitingGroup
from draco.controller.view import ClusterView
from draco.controller.workers.contract import WorkerPool
from draco.kube.connect.retry import doubling_s
from draco.placing.groups.group import GroupPlacement
from draco.resources.api.meta import ObjectKey

_GROUPS_AT_ONCE: Final = 64
_SOONEST_S: Final = 0.05
_LATEST_S: Final = 1.0
_REST: Final = 4
"""How soon a group that found no place is asked about again after something has changed: after so many times what that took of
processor time, within these bounds."""
SECOND_LOOK_S: Final = 60.0
"""How old an answer gets before it is asked for again without a reason."""
_CALM: Final = 20
"""After each answer nothing is asked without a reason for so many times what it took of processor time."""
_LONGEST_S: Final = 60.0
"""The longest for which a group is left alone that got no answer: each time twice as long as before."""


class NoPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A group that found no place: what was known then (None: no change counts), what it asked for, and when to ask again.

    That is not before `rested_s` where something else is known or asked for, and at `again_s` whatever is.
    """

    basis: Basis | None
    wanted: Wanted
    at_s: float
    freed: int
    """How many claims had lost their devices by then."""
    rested_s: float
    again_s: float
    why_not: str
    is_hopeless: bool

    def holds(self, waiting: WaitingGroup, basis: Basis) -> bool:
        """Whether it is to be so still, as all that it rests on is as it was."""
        return self.basis == basis and self.wanted == Wanted.by(waiting)


class AskingSchedule:
    """The turns of groups, by the UIDs of these."""

    def __init__(
        self,
        view: ClusterView,
        workers: WorkerPool,
        *,
        preempts_in_s: Callable[[WaitingGroup], float],
        refused_until_s: Callable[[str, float], float],
    ) -> None:
        """`preempts_in_s` tells when others may leave for a group, `refused_until_s` until when nodes are out for a pod."""
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
        """Whether the group is to be asked about on its own, since there was no answer when it was with others."""
        return uid in self._unanswered

    def batch(
        self, due: Mapping[str, WaitingGroup], kept_from: Callable[[WaitingGroup], frozenset[str]]
    ) -> dict[str, WaitingGroup]:
        """The oldest group with those of its namespace that come next: a batch is on one tenant's budget.

        `due` are in their order; `kept_from` tells whose devices a group is not given, which is the same for all of a batch.
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
            # Groups whose pods name one claim are asked about one after the other: where the first gets it decides for the next.
            if each.namespace != first.namespace or self.is_alone(uid) or claims & own:
                continue
            if kept_from(each) == kept:
                batch[uid] = each
                claims |= own
            if len(batch) == _GROUPS_AT_ONCE:
                break
        return batch

    def may_find_place(self, uid: str) -> bool:
        """Whether the group would find a place if others ended, as far as is known."""
        asked = self._without_place.get(uid)
        return asked is None or not (asked.is_hopeless or asked.basis is None)

    def forget_others(self, uids: set[str]) -> None:
        """Forget what is remembered of groups that do not wait any more."""
        self._without_place = {uid: each for uid, each in self._without_place.items() if uid in uids}
        self._unanswered = {uid: times for uid, times in self._unanswered.items() if uid in uids}

    def answered(self, uids: Iterable[str], cpu_s: float) -> None:
        """There was an answer, which took so much processor time."""
        for uid in uids:
            self._unanswered.pop(uid, None)
        self._rest_s = min(max(_SOONEST_S, _REST * cpu_s), _LATEST_S)
        self._calm_s = self._clock.monotonic() + _CALM * cpu_s

    def unanswered(self, uids: Iterable[str], *, alone: bool) -> None:
        """There was none in time."""
        for uid in uids:
            self._unanswered[uid] = self._unanswered.get(uid, 0) + alone

    def found_place(self, waiting: WaitingGroup, basis: Basis) -> NoPlace | None:
        """The group is being given devices. Returns what was answered before, if that was to be so still."""
        asked = self._without_place.pop(waiting.uid, None)
        return asked if asked is not None and asked.holds(waiting, basis) else None

    def found_none(self, waiting: WaitingGroup, placement: GroupPlacement, basis: Basis, since_s: float) -> bool:
        """The group, as it was looked at from `since_s` on, found no place. Returns whether that is new."""
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
        """Whether the group found no place, and that is to be so still."""
        asked = self._without_place.get(waiting.uid)
        return asked is not None and asked.holds(waiting, basis)

    def waits_s(
        self, groups: Mapping[str, WaitingGroup], basis: Basis, is_anything_free: Callable[[], bool]
    ) -> dict[str, float]:
        """In how many seconds to ask about each group; infinite as long as nothing changes. `groups` are in their order.

        One that was never asked about waits for those before it that rest: what has become free since they were asked about may
        be what they need, so who comes now does not get it before they do. As long as anything is free, each is asked about again
        after a while though nothing has changed.
        """
        now_s, rests_s, found = self._clock.monotonic(), 0.0, {}
        is_free = cache(is_anything_free)
        for uid, each in groups.items():
            asked, may_ask = self._without_place.get(uid), self._workers.may_ask(each.namespace)
            wait_s = self._wait_s(each, asked, basis, now_s, is_free, among=len(groups)) if may_ask else _LATEST_S
            found[uid] = max(wait_s, rests_s) if asked is None else wait_s
            if asked is None or asked.basis is None or asked.is_hopeless or asked.freed == self._releases.freed:
                continue
            if may_ask:  # nobody waits for a tenant that asks too much
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
        if among > 1:  # the oldest may need all that becomes free: it is not given to others bit by bit
            changed_s = max(changed_s, self._releases.over_s(asked.rested_s))
        # Nobody is evicted for one that would find no place all the same, or of which nobody knows.
        is_vain = asked.is_hopeless or waiting.uid in self._unanswered
        preempts_s = float("inf") if is_vain else now_s + self._preempts_in_s(waiting)
        return max(0.0, min(changed_s, asked.again_s, preempts_s) - now_s)
