"""Numbers and lists, as a sentence says them.

Owns plurals, the words that agree with a number, and lists that end in how many more there are. Knows nothing of what is counted.
"""

from collections.abc import Iterable
from typing import Final

NAMED: Final = 3
"""So many of a list are named, where there is no reason for more."""


def counted(number: int, noun: str) -> str:
    """A number of things: "1 device", "2 devices"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def agreeing(number: int, one: str, many: str) -> str:
    """The word that agrees with the number of things: "waits" of one, "wait" of more or none."""
    return one if number == 1 else many


def are(number: int) -> str:
    """Of one thing "is"."""
    return agreeing(number, "is", "are")


def them(number: int) -> str:
    """Of one thing "it"."""
    return agreeing(number, "it", "them")


def listed(
    things: Iterable[object], most: int = NAMED, *, total: int = 0, separator: str = ", ", rest: str = "more"
) -> str:
    """The first of them, and how many more there are: "a, b, c and 5 more"; "" without any.

    `total` says how many there are where not all are given, `rest` what the others are called.
    """
    texts = list(map(str, things))
    left = max(total, len(texts)) - min(len(texts), most)
    return separator.join(texts[:most]) + (f" and {left} {rest}" if left else "")
