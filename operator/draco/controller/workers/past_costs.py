"""Remembers questions that exceeded a budget or killed their process, for when they are asked again.

Owns the digest of a question (everything its cost depends on except the fleet, so equal for all pods of a Deployment) and how
long each result counts. Memory is bounded and contains nothing of the question itself. `pool` owns the budgets and the timing.
"""

import hashlib
from typing import Final

import msgspec
from cachetools import LRUCache

from draco.allocation.ownership.claims import classes_of
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.controller.workers.messages import Answer, Failed, OutOfMemory, OverBudget, Question, claims_of, pods_of
from draco.kube.clock import Clock

_REMEMBERED: Final = 4096
_FAILED_FOR_S: Final = 300.0
_TWICE: Final = 2
_LONG_CHARACTERS: Final = 2000
"""Selectors longer than this in total may be costly; people usually write a few hundred characters."""


class _Tried(msgspec.Struct):
    is_long: bool = False
    """Whether it exceeded the short budget."""
    failures: int = 0
    """How often its process died."""


class Experience:
    """Results by the key of a question. `followed` supplies the classes that its cost also depends on."""

    def __init__(self, followed: FollowedFleet, *, clock: Clock) -> None:
        self._followed = followed
        self._clock = clock
        self._refused: LRUCache[bytes, tuple[Answer, float]] = LRUCache(_REMEMBERED)
        self._tried: LRUCache[bytes, _Tried] = LRUCache(_REMEMBERED)

    def key(self, question: Question) -> bytes:
        """A digest of what the question's cost depends on."""
        claims = claims_of(question)
        names = {name for claim in claims for name in classes_of(claim)}
        classes = [self._followed.class_spec(name) for name in sorted(names)]
        of_pods = [(pod.spec.node_selector, pod.spec.affinity, pod.spec.tolerations) for pod in pods_of(question)]
        kind = type(question).__name__
        whole = msgspec.msgpack.encode((kind, [claim.spec for claim in claims], classes, of_pods))
        return hashlib.blake2b(whole, digest_size=16).digest()

    def refusal(self, key: bytes) -> Answer | None:
        """The answer to give without asking again; None if it may be asked."""
        answer, until_s = self._refused.get(key, (None, 0.0))
        return answer if self._clock.monotonic() < until_s else None

    def needed_long(self, key: bytes) -> bool:
        """Whether it exceeded the short budget before."""
        tried = self._tried.get(key)
        return tried is not None and tried.is_long

    def needs_long(self, key: bytes) -> None:
        """Record that it exceeded the short budget."""
        self._tried[key] = msgspec.structs.replace(self._tried.get(key, _Tried()), is_long=True)

    def failed(self, key: bytes, answer: Failed) -> int:
        """Record that its process died. Return how often; from the second time on it is refused for a while."""
        tried = self._tried.pop(key, _Tried())
        tried = msgspec.structs.replace(tried, failures=tried.failures + 1)
        if tried.failures < _TWICE:
            self._tried[key] = tried
        else:
            self._refused[key] = (answer, self._clock.monotonic() + _FAILED_FOR_S)
        return tried.failures

    def too_costly(self, key: bytes, answer: OverBudget | OutOfMemory) -> None:
        """Record that it exceeded the long budget: refused while the claims and their classes are unchanged."""
        self._tried.pop(key, None)
        self._refused[key] = (answer, float("inf"))

    def answered(self, key: bytes) -> None:
        """Record that it was answered."""
        self._tried.pop(key, None)


def looks_costly(question: Question) -> bool:
    """Whether the selectors in the question's claims are long enough to be costly."""
    return (
        sum(
            len(selector.cel.expression)
            for claim in claims_of(question)
            for request in claim.spec.devices.requests
            for asked in (request.exactly, *request.first_available)
            if asked is not None
            for selector in asked.selectors
            if selector.cel is not None
        )
        > _LONG_CHARACTERS
    )
