"""Texts for people: escaping, numbers and lists in sentences, and similar names. Pure.

What of a foreign text may reach a terminal, an Event or a log is decided here: names, selectors and messages can contain escape
sequences that rewrite a screen, line breaks that forge a line, and marks that reverse the order of letters.
"""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from typing import Final


def shown(text: str) -> str:
    """Return the text on one line: white space as spaces, other unprintable characters as codes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else _code(each) for each in text)


def shown_lines(text: str) -> str:
    """Return several lines with each line escaped."""
    return "\n".join(map(shown, text.split("\n")))


def shown_document(text: str) -> str:
    """Return an equivalent JSON document without unprintable characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _code(each) for each in text)


def _code(character: str) -> str:
    """A character as JSON escapes it, beyond four hex digits as a surrogate pair."""
    halves = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{halves[at : at + 2].hex()}" for at in range(0, len(halves), 2))


NAMED: Final = 3
"""How many items of a list are named by default."""


LONGEST_REASON: Final = 400
_DENIED: Final = re.compile(
    r"(?:.*\b)?(?P<who>(?:ValidatingAdmissionPolicy|admission webhook) ['\"][^'\"]+['\"])(?: with binding '[^']+')? "
    r"denied (?:the )?request: (?P<why>.*)",
    re.DOTALL,
)
"""The API server's text for a refusal by admission: names first, the reason at the end."""


def reason_of(text: str, most: int = LONGEST_REASON) -> str:
    """Return another program's error on one line of at most `most` characters, without a full stop.

    Errors usually begin with the action and end with the reason, so a long text loses its middle. For refusals by admission the
    reason comes first, then who refused.
    """
    flat = " ".join(shown(text).split()).rstrip(".")
    if denied := _DENIED.fullmatch(flat):
        flat = f"{denied['why']} ({denied['who'].replace(chr(39), '').replace(chr(34), '')})"
    if len(flat) <= most:
        return flat
    end = most * 2 // 3
    return f"{flat[: most - end - 3].rstrip()} … {flat[-end:].lstrip()}"


def shortened(text: str, most: int) -> str:
    """Return the text on one line of at most `most` characters, cut at the end."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1].rstrip()}…"


def counted(number: int, noun: str) -> str:
    """Write a number of things: "1 device", "2 devices"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def agreeing(number: int, one: str, many: str) -> str:
    """Return the word that agrees with the number: "waits" for 1, else "wait"."""
    return one if number == 1 else many


def short_sentence(text: str, most: int) -> str:
    """Return `reason_of` as a sentence, for a status message of limited length."""
    return sentence(reason_of(text, most))


def sentence(text: str) -> str:
    """The text with exactly one full stop at its end."""
    text = text.rstrip()
    return text if text.endswith(("!", "?", "…")) else f"{text.rstrip('.')}."


def are(number: int) -> str:
    """Return "is" for 1, else "are"."""
    return agreeing(number, "is", "are")


def them(number: int) -> str:
    """Return "it" for 1, else "them"."""
    return agreeing(number, "it", "them")


def listed(
    things: Iterable[object], most: int = NAMED, *, total: int = 0, separator: str = ", ", rest: str = "more"
) -> str:
    """Return the first ones and how many `rest` there are ("a, b and 5 more"), up to `total` if given; "" without any."""
    texts = list(map(str, things))
    left = max(total, len(texts)) - min(len(texts), most)
    return separator.join(texts[:most]) + (f" and {left} {rest}" if left else "")


def others(number: int, noun: str) -> str:
    """Return the number of others besides a named one: " (and 1 more pod)"; "" if there are none."""
    return f" (and {counted(number, f'more {noun}')})" if number else ""


ALIKE: Final = 0.75
"""Similarity from which a name is shown as the nearest. Only a slip (see `slip_of`) is certain enough to be corrected."""
_SHORTEST: Final = 3
"""Minimum length of a word in which one missing letter counts as a slip."""


def most_like(name: str, names: Iterable[str], *, at_least: float) -> str:
    """Return the most similar name, ignoring case; "" if none is similar enough (1 is equal)."""
    best, likeness = _most_like(name, tuple(sorted(names)))
    return best if likeness >= at_least else ""


@lru_cache(maxsize=32)
def _most_like(name: str, names: tuple[str, ...]) -> tuple[str, float]:
    """The most similar name and its similarity; cached, because several remedies ask for the same."""
    alike = [(SequenceMatcher(None, name.lower(), each.lower()).ratio(), each) for each in names]
    likeness, best = max(alike, key=lambda pair: pair[0], default=(0.0, ""))
    return best, likeness


def slip_of(written: str, names: Iterable[str]) -> str:
    """Return the one name of which `written` is a typing error; "" if it may be another word, or matches several.

    A slip is in case, separators, or one letter: added, missing, or swapped with its neighbour. Never in a digit, because numbers
    distinguish names.
    """
    found = {each for each in names if _is_slip(plain(written), plain(each))}
    return found.pop() if len(found) == 1 else ""


def plain(name: str) -> str:
    """A name in lower case without separators."""
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
    """Return the end of a sentence about an unknown name: what may be meant."""
    names = sorted(known)
    near = get_close_matches(name, names[:5000], n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there is {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}." if names else "; there is none."
