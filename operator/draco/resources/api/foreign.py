"""Reading JSON written by others: the result is a value or a `msgspec.DecodeError`.

Users may nest a driver's content (`opaque.parameters`) thousands of levels deep, and the API server stores it; reading,
comparing, copying and writing it would overflow the stack. So values nested too deeply are read as null. Never write back whole
what was read here.
"""

import re
from typing import Any, Final, Protocol, TypeVar

import msgspec

T_co = TypeVar("T_co", covariant=True)

DEEPEST: Final = 100
"""Levels of an object that are read. Kubernetes' kinds have about twenty."""
DEEPEST_OPAQUE: Final = 50
"""Levels that are read of a driver's content."""
_STRING_OR_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


class Decoder(Protocol[T_co]):
    """A decoder of msgspec."""

    def decode(self, buf: bytes | msgspec.Raw, /) -> T_co:
        """Decode the bytes."""


def read(decoder: Decoder[T_co], written: bytes | msgspec.Raw) -> T_co:
    """Decode JSON. Raises msgspec.DecodeError, of which ValidationError is a subclass."""
    try:
        try:
            return decoder.decode(written)
        except RecursionError:
            return decoder.decode(shallow(bytes(written)))
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from error


def read_plain(written: bytes | msgspec.Raw) -> Any:
    """Decode JSON to its own types. Raises msgspec.DecodeError."""
    return read(_PLAIN, written)


def shallow(written: bytes, deepest: int = DEEPEST) -> bytes:
    """Replace what is nested deeper by null. Invalid JSON stays invalid."""
    kept: list[bytes] = []
    depth = start = 0
    for found in _STRING_OR_BRACKET.finditer(written):
        match found[0]:
            case b"[" | b"{":
                if depth == deepest:
                    kept += (written[start : found.start()], b"null")
                depth += 1
            case b"]" | b"}":
                depth -= 1
                if depth == deepest:
                    start = found.end()
    if depth <= deepest:
        kept.append(written[start:])
    return b"".join(kept)


def shallow_value(value: Any, deepest: int = DEEPEST_OPAQUE) -> Any:
    """Replace what is nested deeper by None, in a value of JSON's types."""
    return _cut(value, deepest) if _reaches(value, deepest + 1) else value


def is_cut(value: Any, deepest: int = DEEPEST_OPAQUE) -> bool:
    """Whether the value reaches the nesting limit, so that some of it may have been left out."""
    return _reaches(value, deepest)


def _reaches(value: Any, depth: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    if depth <= 1:
        return True
    for each in (
        value.values() if isinstance(value, dict) else value
    ):  # no generator: this runs for each claim that is read
        if isinstance(each, (dict, list)) and _reaches(each, depth - 1):
            return True
    return False


def _cut(value: Any, deepest: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if deepest == 0:
        return None
    if isinstance(value, dict):
        return {name: _cut(each, deepest - 1) for name, each in value.items()}
    return [_cut(each, deepest - 1) for each in value]


_PLAIN: Final = msgspec.json.Decoder()
