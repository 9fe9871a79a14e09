"""What is remembered of questions that exceeded a budget or killed their process, for when they are asked again.

Owns the digest by which a question is known (what its cost depends on, but for the fleet: the same for all pods of a Deployment)
and how long which experience counts. All of it is bounded and none of it holds what the question is about. Which budgets there
are, and what is asked when, is `pool`'s.
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
"""Selectors of so many characters together may well be costly; what people write has a few hundred."""


class _Tried(msgspec.Struct):
    """A question that has not been answered yet."""

    is_long: bool = False
    """Whether the short budget did not suffice."""
    failures: int = 0
    """How often its process died."""


class Experience:
    """By the key of a question. `followed` knows the classes on which a cost depends too."""

    def __init__(self, followed: FollowedFleet, *, clock: Clock) -> None:
        self._followed = followed
        self._clock = clock
        self._refused: LRUCache[bytes, tuple[Answer, float]] = LRUCache(_REMEMBERED)
        self._tried: LRUCache[bytes, _Tried] = LRUCache(_REMEMBERED)

    def key(self, question: Question) -> bytes:
        """A digest of what the cost of the question depends on."""
        claims = claims_of(question)
        names = {name for claim in claims for name in classes_of(claim)}
        classes = [self._followed.class_spec(name) for name in sorted(names)]
        of_pods = [(pod.spec.node_selector, pod.spec.affinity, pod.spec.tolerations) for pod in pods_of(question)]
        kind = type(question).__name__
        whole = msgspec.msgpack.encode((kind, [claim.spec for claim in claims], classes, of_pods))
        return hashlib.blake2b(whole, digest_size=16).digest()

    def refusal(self, key: bytes) -> Answer | None:
        """What is said instead of asking it once more; None if it may be asked."""
        answer, until_s = self._refused.get(key, (None, 0.0))
        return answer if self._clock.monotonic() < until_s else None

    def needed_long(self, key: bytes) -> bool:
        """Whether a short budget did not suffice before."""
        tried = self._tried.get(key)
        return tried is not None and tried.is_long

    def needs_long(self, key: bytes) -> None:
        """The short budget did not suffice."""
        self._tried[key] = msgspec.structs.replace(self._tried.get(key, _Tried()), is_long=True)

    def failed(self, key: bytes, answer: Failed) -> int:
        """Its process died. Returns how often by now; from the second time on it is refused for a while."""
        tried = self._tried.pop(key, _Tried())
        tried = msgspec.structs.replace(tried, failures=tried.failures + 1)
        if tried.failures < _TWICE:
            self._tried[key] = tried
        else:
            self._refused[key] = (answer, self._clock.monotonic() + _FAILED_FOR_S)
        return tried.failures

    def too_costly(self, key: bytes, answer: OverBudget | OutOfMemory) -> None:
        """The long budget did not suffice: it is refused for as long as the claims and their classes are as they are."""
        self._tried.pop(key, None)
        self._refused[key] = (answer, float("inf"))

    def answered(self, key: bytes) -> None:
        """It has been answered."""
        self._tried.pop(key, None)


def looks_costly(question: Question) -> bool:
    """Whether the selectors that the question's claims bring along are so long that they may well be costly."""
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
