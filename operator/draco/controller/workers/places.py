"""Tracks where questions are answered: in a few places, each with a row of questions in sequence.

Owns what is being answered, in which row, and when an answer is late. On a busy machine an answer takes a hundredth of the round
trip through the pipes, so the questions of a row share one.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import Answer, Question

IN_A_ROW: Final = 16
"""Maximum number of questions in a row, answered one after the other in one place."""
_LATE_S: Final = 5.0
"""How much later than a child's deadline the fleet process itself counts as hung."""

ReadQuestion: TypeAlias = Callable[[], Question | None]
"""Reads the current objects and returns the question; None if nobody asks it any more."""


class Answered(msgspec.Struct, frozen=True):
    """The answer, the version of the cluster it is about, and the CPU time it took."""

    answer: Answer
    version: int
    cpu_s: float


class PendingQuestion:
    """A question that somebody waits for. Its objects are read when its turn comes."""

    def __init__(
        self, read: ReadQuestion, namespace: str, urgency: QueuePriority, key: bytes, *, is_long: bool
    ) -> None:
        self.read = read
        self.namespace = namespace
        self.urgency = urgency
        self.key = key
        self.is_long = is_long
        self.cpu_s = 0.0
        self.scale = 1.0
        self.future: asyncio.Future[Answered | None] = asyncio.get_running_loop().create_future()


class _Row:
    """Questions in one place by number, the current one first."""

    def __init__(self, questions: dict[int, PendingQuestion], wall_s: float, now_s: float, *, is_long: bool) -> None:
        self.questions = questions
        self.wall_s = wall_s
        self.is_long = is_long
        self.began_s = now_s
        """When the current question was started."""


class Places:
    """A fixed number of places for short rows, and one for a long question."""

    def __init__(self, short: int) -> None:
        self._short = short
        self._rows: list[_Row] = []
        self._number = 0

    @property
    def late_at_s(self) -> float | None:
        """When the next answer is late; None if none is expected."""
        return min((row.began_s + row.wall_s + _LATE_S for row in self._rows), default=None)

    def left(self, *, is_long: bool) -> int:
        """How many places are free; -1 with one row more than places."""
        return (1 if is_long else self._short) - sum(row.is_long is is_long for row in self._rows)

    def give(self, questions: Sequence[PendingQuestion], wall_s: float, now_s: float) -> list[int]:
        """Assign a place to a row of questions with `wall_s` each. Return their numbers."""
        numbers = list(range(self._number + 1, self._number + 1 + len(questions)))
        self._number += len(questions)
        row = dict(zip(numbers, questions, strict=True))
        self._rows.append(_Row(row, wall_s, now_s, is_long=questions[0].is_long))
        return numbers

    def end(self, number: int, now_s: float) -> PendingQuestion | None:
        """Record an answer, which starts the next question of the row. None if it was not expected."""
        row = next((each for each in self._rows if number in each.questions), None)
        if row is None:
            return None
        question, row.began_s = row.questions.pop(number), now_s
        if not row.questions:
            self._rows.remove(row)
        return question

    def end_all(self) -> tuple[list[PendingQuestion], list[PendingQuestion]]:
        """Drop all rows. Return the questions that had been started, one per row, and those that had not."""
        rows, self._rows = [list(row.questions.values()) for row in self._rows], []
        return [row[0] for row in rows], [question for row in rows for question in row[1:]]
