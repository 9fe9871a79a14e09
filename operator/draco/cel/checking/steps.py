"""Walks over trees of any depth without a stack as deep: generators that ask for the walk below them."""

from collections.abc import Generator
from typing import TypeAlias

Steps: TypeAlias = Generator["Steps", None, None]


def run(steps: Steps) -> None:
    """Run a walk to its end; what it yields is run before it goes on."""
    stack = [steps]
    while stack:
        try:
            stack.append(next(stack[-1]))
        except StopIteration:
            stack.pop()
