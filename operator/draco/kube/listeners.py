"""Telling others that something has happened.

Owns a list of functions to call. When they are called, and what they do, is others' business: they must be quick and must not
raise.
"""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Functions that are called in the order in which they were added."""

    def __init__(self) -> None:
        self._calls: list[Callable[P, None]] = []

    def add(self, call: Callable[P, None]) -> None:
        """Have `call` called, too."""
        self._calls.append(call)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call them all."""
        for call in self._calls:
            call(*args, **kwargs)
