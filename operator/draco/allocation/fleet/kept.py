"""What was worked out before and is asked for again and again.

Owns how many answers are kept: the one that nobody asked for longest goes first, so that whoever may choose what is asked cannot
fill the memory. Knows nothing of what it keeps, nor when that is no longer true: then whoever has it must forget.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Kept:
    """Answers by what was asked, so many at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, asked: Hashable, work_out: Callable[[], T]) -> T:
        """The answer, worked out if it is not kept. `asked` must tell apart whatever has different answers."""
        if asked in self._answers:
            self._answers.move_to_end(asked)
            kept: T = self._answers[asked]
            return kept
        answer = self._answers[asked] = work_out()
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)
        return answer

    def forget(self) -> None:
        """None of it may be true any more."""
        self._answers.clear()
