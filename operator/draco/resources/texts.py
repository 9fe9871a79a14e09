"""Texts for people: what of others' texts may be shown, numbers and lists as a sentence says them, and names that are alike.

Owns what of a text may reach a terminal, an Event or a log. Names of processes, selectors and messages can hold escape sequences
that rewrite a screen, line breaks that forge a line, and marks that turn the order of letters around. Owns also plurals, the
words that agree with a number, lists that end in how many more there are, and which name was meant by one that is not known; and
how what a program says of a failure is made short enough without losing why.
Pure.
"""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from typing import Final


def shown(text: str) -> str:
    """Return the text on one line: white space as spaces, whatever else is not printable as its code."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else _code(each) for each in text)


def shown_lines(text: str) -> str:
    """Return the same of a text of several lines, which are ours."""
    return "\n".join(map(shown, text.split("\n")))


def shown_document(text: str) -> str:
    """Write a document in JSON that means the same, without what is not printable."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _code(each) for each in text)


def _code(character: str) -> str:
    """As JSON has it: what lies beyond four digits as two halves."""
    halves = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{halves[at : at + 2].hex()}" for at in range(0, len(halves), 2))


NAMED: Final = 3
"""So many of a list are named, where there is no reason for more."""


LONGEST_REASON: Final = 400
_DENIED: Final = re.compile(
    r"(?:.*\b)?(?P<who>(?:ValidatingAdmissionPolicy|admission webhook) ['\"][^'\"]+['\"])(?: with binding '[^']+')? "
    r"denied (?:the )?request: (?P<why>.*)",
    re.DOTALL,
)
"""How an API server begins to say that admission refused something: names first, and the reason at the end."""


def reason_of(text: str, most: int = LONGEST_REASON) -> str:
    """Return what another program says of a failure on one line of at most `most` characters, without a full stop.

    Programs begin with what they were doing and end with why, so a text that is too long loses its middle; of what admission
    refused the reason comes first, then who refused it.
    """
    flat = " ".join(shown(text).split()).rstrip(".")
    if denied := _DENIED.fullmatch(flat):
        flat = f"{denied['why']} ({denied['who'].replace(chr(39), '').replace(chr(34), '')})"
    if len(flat) <= most:
        return flat
    end = most * 2 // 3
    return f"{flat[: most - end - 3].rstrip()} … {flat[-end:].lstrip()}"


def shortened(text: str, most: int) -> str:
    """Return the text on one line of at most `most` characters; one that is too long loses its end."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1].rstrip()}…"


def counted(number: int, noun: str) -> str:
    """Write a number of things: "1 device", "2 devices"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def agreeing(number: int, one: str, many: str) -> str:
    """Return the word that agrees with the number of things: "waits" of one, "wait" of more or none."""
    return one if number == 1 else many


def short_sentence(text: str, most: int) -> str:
    """What `reason_of` returns, as a sentence: for a message of a status, which has a bound."""
    return sentence(reason_of(text, most))


def sentence(text: str) -> str:
    """The text with one full stop at its end: what drivers and people say may have one already."""
    text = text.rstrip()
    return text if text.endswith(("!", "?", "…")) else f"{text.rstrip('.')}."


def are(number: int) -> str:
    """Of one thing "is"."""
    return agreeing(number, "is", "are")


def them(number: int) -> str:
    """Of one thing "it"."""
    return agreeing(number, "it", "them")


def listed(
    things: Iterable[object], most: int = NAMED, *, total: int = 0, separator: str = ", ", rest: str = "more"
) -> str:
    """Return the first of them, and how many more there are: "a, b, c and 5 more"; "" without any.

    `total` says how many there are where not all are given, `rest` what the others are called.
    """
    texts = list(map(str, things))
    left = max(total, len(texts)) - min(len(texts), most)
    return separator.join(texts[:most]) + (f" and {left} {rest}" if left else "")


def others(number: int, noun: str) -> str:
    """Return how many there are besides one that is named: " (and 1 more pod)"; "" if there are none."""
    return f" (and {counted(number, f'more {noun}')})" if number else ""


ALIKE: Final = 0.75
"""From here on a name is like another: it is told as the nearest. Only of a slip it is certain enough to be put in its place."""
_SHORTEST: Final = 3
"""Letters of a word in which one letter more or less is taken for a slip."""


def most_like(name: str, names: Iterable[str], *, at_least: float) -> str:
    """Return the name that is most like another, letters' case aside; "" if none is so much alike (1 is equal)."""
    best, likeness = _most_like(name, tuple(sorted(names)))
    return best if likeness >= at_least else ""


@lru_cache(maxsize=32)
def _most_like(name: str, names: tuple[str, ...]) -> tuple[str, float]:
    """The name that is most like another, and how much: remembered, as the same is asked for several remedies."""
    alike = [(SequenceMatcher(None, name.lower(), each.lower()).ratio(), each) for each in names]
    likeness, best = max(alike, key=lambda pair: pair[0], default=(0.0, ""))
    return best, likeness


def slip_of(written: str, names: Iterable[str]) -> str:
    """The one of the names of which another is a slip of the keyboard; "" if it may be another word, or a slip of several.

    A slip is in the case of letters, in separators, or in one letter: too many, missing, or swapped with its neighbour. Numbers
    tell things apart, so none of it is in a digit.
    """
    found = {each for each in names if _is_slip(plain(written), plain(each))}
    return found.pop() if len(found) == 1 else ""


def plain(name: str) -> str:
    """A name without what is written in more than one way."""
    return name.replace("-", "").replace("_", "").lower()


def _is_slip(one: str, other: str) -> bool:
    if one == other:
        return True
    shorter, longer = sorted((one, other), key=len)
    start = next((at for at, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter))
    if len(shorter) == len(longer):
        swapped = longer[:start] + longer[start : start + 2][::-1] + longer[start + 2 :]
        return swapped == shorter and longer[start : start + 2].isalpha()
    without = longer[:start] + longer[start + 1 :]
    return without == shorter and longer[start].isalpha() and len(shorter) >= _SHORTEST


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that says that a name is not known: what may have been meant."""
    names = sorted(known)
    near = get_close_matches(name, names[:5000], n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there is {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}." if names else "; there is none."
