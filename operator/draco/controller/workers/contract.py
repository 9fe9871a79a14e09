"""The workers' interface: how to ask, what comes back, and what may be called.

Owns the contract; `pool` implements it.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import msgspec

from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import Answer, Question

IN_A_ROW: Final = 16
"""Maximum number of questions in a row, answered one after the other in one place."""

ReadQuestion: TypeAlias = Callable[[], Question | None]
"""Reads the current objects and returns the question; None if nobody asks it any more."""


class Answered(msgspec.Struct, frozen=True):
    """The answer, the version of the cluster it is about, and the CPU time it took."""

    answer: Answer
    version: int
    cpu_s: float


class WorkerPool(Protocol):
    """Answers questions; implemented by `Workers`."""

    @property
    def long_cpu_s(self) -> float:
        """Maximum CPU time of a question."""
        ...

    def may_ask(self, namespace: str) -> bool:
        """Whether the namespace has budget left."""
        ...

    async def ask(self, read: ReadQuestion, namespace: str, urgency: QueuePriority) -> Answered | None:
        """Answer, or NoAnswer, as of now or later. `read` is called now and at the question's turn: None if nobody asks then."""
        ...

    async def ask_within(
        self, question: Question, namespace: str, urgency: QueuePriority, within_s: float
    ) -> Answered | None:
        """The answer, or None if it takes longer than `within_s`."""
        ...
