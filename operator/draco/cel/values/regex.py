"""Regular expressions as Go reads them, compiled with RE2 and matched in linear time. Callers cache compiled patterns."""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Final

import re2

from draco.cel.errors import EvaluationError

_GO_REASONS: Final = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "trailing \\": "trailing backslash at end of expression",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}
_MAX_NESTING: Final = 1000
"""Levels of a pattern's tree, counting groups, as in Go."""
_BRACKETS: Final = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)
"""What may hold a bracket that opens no group."""
_KEPT_TEXTS: Final = 1024
_LONGEST_KEPT: Final = 512


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with RE2; the result has the methods of Python's patterns. Raises EvaluationError with Go's text."""
    if pattern.count("(") >= _MAX_NESTING and _groups(pattern) >= _MAX_NESTING:
        raise EvaluationError(f"error parsing regexp: expression nests too deeply: `{pattern}`")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: re.Pattern[str] = re2.compile(pattern, options)
    except re2.error as error:
        raise EvaluationError(go_sentence(error)) from None
    return compiled


def _groups(pattern: str) -> int:
    opened = most = 0
    for sign in _BRACKETS.sub("", pattern):
        opened += (sign == "(") - (sign == ")")
        most = max(most, opened)
    return most


def go_sentence(error: Exception) -> str:
    """RE2's error in the words of Go's parser."""
    reason = error.args[0] if error.args else ""
    if isinstance(reason, bytes):
        reason = reason.decode("utf-8", "replace")
    kind, separator, part = reason.partition(": ")
    return f"error parsing regexp: {_GO_REASONS.get(kind, kind)}" + (f": `{part}`" if separator else "")


def matcher(compiled: re.Pattern[str]) -> Callable[[str], bool]:
    """Return a cached test for a match: a call of RE2 takes microseconds, and devices share most of their texts."""

    @lru_cache(maxsize=_KEPT_TEXTS)
    def remembered(text: str) -> bool:
        return compiled.search(text) is not None

    def matches(text: str) -> bool:
        return remembered(text) if len(text) <= _LONGEST_KEPT else compiled.search(text) is not None

    return matches


def found(compiled: re.Pattern[str], text: str) -> str:
    """Return the leftmost match, or an empty text."""
    match = compiled.search(text)
    return text[match.start() : match.end()] if match else ""


def every_match(compiled: re.Pattern[str], text: str, limit: int) -> list[str]:
    """Return the non-overlapping matches, at most `limit`, or all if negative."""
    return list(islice(_matches(compiled, text), limit if limit >= 0 else None))


def _matches(compiled: re.Pattern[str], text: str) -> Iterator[str]:
    """Go's rule: an empty match right after another match does not count."""
    position, last_end = 0, -1
    while position <= len(text):
        match = compiled.search(text, position)
        if match is None:
            return
        start, end = match.start(), match.end()
        if end > start or start != last_end:
            yield text[start:end]
        last_end = end
        position = end if end > position else position + 1
