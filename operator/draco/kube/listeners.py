"""Callbacks for events within the process.

Owns a list of functions to call, which must be quick and must not raise.
"""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Functions that are called in the order in which they were added."""

    def __init__(self) -> None:
        self._calls: list[Callable[P, None]] = []

    def add(self, call: Callable[P, None]) -> None:
        """Add a function."""
        self._calls.append(call)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call them all."""
        for call in self._calls:
            call(*args, **kwargs)
