"""Walks over deep trees without deep recursion: generators that yield the walks they need."""

from collections.abc import Generator
from typing import Any, TypeAlias

Steps: TypeAlias = Generator["Steps", Any, Any]


def run(steps: Steps) -> Any:
    """Run a walk and return its result. Each walk it yields runs first, and its result is sent back."""
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
