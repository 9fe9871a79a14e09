"""What those see who ask the workers: how a question is put, what comes of it, and what may be called.

Owns the contract of `pool`, which answers.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import msgspec

from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import Answer, Question

IN_A_ROW: Final = 16
"""Questions that are answered one after the other in the same place, at most."""

ReadQuestion: TypeAlias = Callable[[], Question | None]
"""Reads what is asked about as it now is, and says what to ask; None if nobody asks it any more."""


class Answered(msgspec.Struct, frozen=True):
    """What came of a question, about the cluster as of `version`, and the CPU time that it took."""

    answer: Answer
    version: int
    cpu_s: float


class WorkerPool(Protocol):
    """Who answers questions: `Workers`."""

    @property
    def long_cpu_s(self) -> float:
        """What a question may take at most."""
        ...

    def may_ask(self, namespace: str) -> bool:
        """Whether the namespace has some of its budget left."""
        ...

    async def ask(self, read: ReadQuestion, namespace: str, urgency: QueuePriority) -> Answered | None:
        """The answer by the cluster as it is now or later; None if nobody asks any more when the question's turn comes.

        OverBudget, OutOfMemory and Failed are answers too. `read` is called now, and again at its turn.
        """
        ...

    async def ask_within(
        self, question: Question, namespace: str, urgency: QueuePriority, within_s: float
    ) -> Answered | None:
        """The answer, if it comes in time."""
        ...
