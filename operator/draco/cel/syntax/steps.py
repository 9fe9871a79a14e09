"""Walks over trees of any depth without a stack as deep: generators that ask for the walk below them."""

from collections.abc import Generator
from typing import Any, TypeAlias

Steps: TypeAlias = Generator["Steps", Any, Any]


def run(steps: Steps) -> Any:
    """Run a walk to its end and return its result; what it yields is run before it goes on, with the result of that."""
    waiting, result = [steps], None
    while waiting:
        try:
            below = waiting[-1].send(result)
        except StopIteration as finished:
            waiting.pop()
            result = finished.value
        else:
            waiting.append(below)
            result = None
    return result
