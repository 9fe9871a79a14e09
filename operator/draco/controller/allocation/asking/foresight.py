"""Precomputes where the next claim would go if it is like the last one, while nothing waits.

Owns when this is worth a question, and how long the answer is valid: until its basis changes. Claims of one template or user are
usually alike, as are the pods of one controller. Only single claims are foreseen.
"""

from typing import Final

import msgspec

from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import PlaceClaims, PlacementAnswer
from draco.controller.workers.pool import Workers
from draco.kube.clock import Clock
from draco.kube.connect.retry import Backoff
from draco.placing.groups.group import ClaimGroup, GroupMember, GroupPlacement
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectMeta
from draco.resources.names import PoolKey

_IDLE_S: Final = 0.01
"""Ask nothing ahead while claims come faster than this: the answers would be outdated before use."""
_AGAIN_S, _LONGEST_S = 0.05, 5.0
"""Backoff between questions whose answers became outdated unused; reset when one is used."""
_EXPECTED_S: Final = 60.0
"""How long after a claim another one is expected."""
_CHEAP_S: Final = 0.02
"""CPU time up to which a speculative answer is worth its cost."""
_PATIENCE_S: Final = 0.5
_NEVER: Final = float("inf")


class _Expected(msgspec.Struct, frozen=True):
    """A claim that was placed, with its pod if any, both without names, and when."""

    member: GroupMember
    at_s: float


class _Foreseen(msgspec.Struct, frozen=True):
    question: PlaceClaims
    basis: object
    placement: GroupPlacement


class Foresight:
    """Holds at most one answer, which serves one claim."""

    def __init__(self, workers: Workers, *, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._expected: _Expected | None = None
        self._foreseen: _Foreseen | None = None
        self._backoff = Backoff(clock, base_s=_AGAIN_S, cap_s=_LONGEST_S)
        self._due_s = float("-inf")

    def expect(self, question: PlaceClaims, cpu_s: float) -> None:
        """Record a placed claim and its cost: the next may be like it."""
        member = _lone_member(question)
        if member is not None:
            self._expected = _Expected(member, self._clock.monotonic()) if cpu_s <= _CHEAP_S else None

    def answer(self, question: PlaceClaims, basis: object) -> list[GroupPlacement] | None:
        """The answer to the question, or None if it is unknown or outdated."""
        known, member = self._foreseen, _lone_member(question)
        if known is None or member is None or basis != known.basis:
            return None
        if known.question != _about(member, question.held, question.spread):
            return None
        self._foreseen = None
        self._expected = _Expected(member, self._clock.monotonic())
        self._backoff.reset()
        self._due_s = float("-inf")
        return [known.placement]

    async def look(self, held: list[ResourceClaim], spread: list[PoolKey], basis: object) -> float:
        """Ask where such a claim would go. Return seconds until the next look; infinite for never."""
        now_s = self._clock.monotonic()
        if self._expected is None or now_s >= self._expected.at_s + _EXPECTED_S:
            self._expected = self._foreseen = None
            return _NEVER
        question = _about(self._expected.member, held, spread)
        if self._foreseen is not None and (self._foreseen.question, self._foreseen.basis) == (question, basis):
            return _NEVER
        due_s = max(self._expected.at_s + _IDLE_S, self._due_s)
        if now_s < due_s:
            return due_s - now_s
        self._foreseen, self._due_s = None, now_s + self._backoff.next()
        namespace = self._expected.member.claims[0].metadata.namespace
        if not self._workers.may_ask(namespace):
            return self._due_s - now_s
        answered = await self._workers.ask_within(question, namespace, QueuePriority.FIRST, _PATIENCE_S)
        match answered.answer if answered else None:
            case PlacementAnswer(placements=[placement]) if placement.results:
                self._foreseen = _Foreseen(question, basis, placement)
        return _NEVER


def _lone_member(question: PlaceClaims) -> GroupMember | None:
    """The single claim of the question, with its pod if any, both without names; None for any other question."""
    match question.groups:
        case [ClaimGroup(members=[GroupMember(claims=[claim], pods=[] | [_] as pods) as member]) as group]:
            if group == ClaimGroup([member]) and not (member.beside or member.without or member.others):
                return GroupMember([_like(claim)], [_like_pod(each) for each in pods])
    return None


def _like(claim: ResourceClaim) -> ResourceClaim:
    return ResourceClaim(metadata=ObjectMeta(namespace=claim.metadata.namespace), spec=claim.spec)


def _like_pod(pod: Pod) -> Pod:
    """The pod reduced to what decides where it can run."""
    spec = msgspec.structs.replace(pod.spec, resource_claims=[], scheduling_gates=[])
    return Pod(metadata=ObjectMeta(namespace=pod.metadata.namespace), spec=spec)


def _about(member: GroupMember, held: list[ResourceClaim], spread: list[PoolKey]) -> PlaceClaims:
    return PlaceClaims([ClaimGroup([member])], held, spread)
