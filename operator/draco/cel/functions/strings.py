"""Text functions except `format`: CEL's strings extension, version 2, and regular expressions. Positions count characters."""

from collections.abc import Callable
from functools import partial
from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.functions.costs import FINDING, JOINING, QUOTING, REPLACING, SAME_SIZE, SPLITTING, TRAVERSING
from draco.cel.functions.overloads import row
from draco.cel.values.bounds import MAX_TEXT, check_text, toil_of_all, toil_of_compiling, too_costly
from draco.cel.values.regex import compile_pattern, every_match, found
from draco.cel.values.texts import ESCAPES, shown
from draco.cel.values.values import Value

_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {lower: lower - 32 for lower in range(ord("a"), ord("z") + 1)}
_BLANKS: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_QUOTES: Final = str.maketrans(ESCAPES)


def _out_of_range(position: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {position}")


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise _out_of_range(position)
    return text[position : position + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise _out_of_range(start)
    if not part:
        return min(start, len(text))
    return text.find(part, start) if start < len(text) else -1


def _last_index_before(text: str, part: str, start: int) -> int:
    if start < 0:
        raise _out_of_range(start)
    if not part:
        return min(start, len(text))
    return text.rfind(part, 0, start + len(part)) if start < len(text) else -1


def _substring(text: str, start: int) -> str:
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


def _substring_between(text: str, start: int, end: int) -> str:
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    for position in (start, end):
        if not 0 <= position <= len(text):
            raise _out_of_range(position)
    return text[start:end]


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    """At most `limit` parts, or all if negative; an empty separator splits into characters."""
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    if limit < 0 or limit >= len(text):
        return list(text)
    return [*text[: limit - 1], text[limit - 1 :]]


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    if len(new) > len(old):
        found = text.count(old)
        check_text(len(text) + (min(found, limit) if limit >= 0 else found) * (len(new) - len(old)))
    return text.replace(old, new, max(limit, -1))


def _join(parts: list[Value], separator: str = "") -> str:
    for part in parts:
        if type(part) is not str:
            raise EvaluationError(f"join: invalid input: {shown(part)}")
    if sum(map(len, parts)) + len(separator) * (len(parts) - 1) > MAX_TEXT:
        raise too_costly()
    return separator.join(parts)


def _in_ascii(change: Callable[[str], str], others: dict[int, int]) -> Callable[[str], str]:
    return lambda text: change(text) if text.isascii() else text.translate(others)


def _find(text: str, pattern: str) -> str:
    return found(_compile(pattern), text)


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    return every_match(_compile(pattern), text, limit)


def _compile(pattern: str) -> Value:
    try:
        return compile_pattern(pattern)
    except EvaluationError as error:
        raise EvaluationError(f"Illegal regex: {error}") from None


_with_pattern = partial(row, cost=FINDING, toil=toil_of_compiling)
_searching = partial(row, cost=TRAVERSING, toil=toil_of_all)
_replacing = partial(row, cost=REPLACING, toil=toil_of_all)
OVERLOADS: Final = {
    "standard": (
        _with_pattern("string_find_string", "string.find(string) -> string", _find),
        _with_pattern("string_find_all_string", "string.findAll(string) -> list(string)", _find_all),
        _with_pattern("string_find_all_string_int", "string.findAll(string, int) -> list(string)", _find_all),
        row("string_char_at_int", "string.charAt(int) -> string", _char_at, toil=toil_of_all),
        _searching("string_index_of_string", "string.indexOf(string) -> int", _index_of),
        _searching("string_index_of_string_int", "string.indexOf(string, int) -> int", _index_of),
        _searching("string_last_index_of_string", "string.lastIndexOf(string) -> int", str.rfind),
        _searching("string_last_index_of_string_int", "string.lastIndexOf(string, int) -> int", _last_index_before),
        row("string_lower_ascii", "string.lowerAscii() -> string", _in_ascii(str.lower, _LOWER), cost=SAME_SIZE),
        _replacing("string_replace_string_string", "string.replace(string, string) -> string", _replace),
        _replacing("string_replace_string_string_int", "string.replace(string, string, int) -> string", _replace),
        row("string_split_string", "string.split(string) -> list(string)", _split, cost=SPLITTING),
        row("string_split_string_int", "string.split(string, int) -> list(string)", _split, cost=SPLITTING),
        row("string_substring_int", "string.substring(int) -> string", _substring, cost=SAME_SIZE),
        row("string_substring_int_int", "string.substring(int, int) -> string", _substring_between, cost=SAME_SIZE),
        row("string_trim", "string.trim() -> string", lambda text: text.strip(_BLANKS), cost=SAME_SIZE),
        row("string_upper_ascii", "string.upperAscii() -> string", _in_ascii(str.upper, _UPPER), cost=SAME_SIZE),
        row("strings_quote", "strings.quote(string) -> string", lambda text: f'"{text.translate(_QUOTES)}"', cost=QUOTING),
        row("list_join", "list(string).join() -> string", _join, cost=JOINING),
        row("list_join_string", "list(string).join(string) -> string", _join, cost=JOINING),
    )
}  # fmt: skip
