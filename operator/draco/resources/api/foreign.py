"""Reading JSON that others wrote: whatever it is, the answer is a value or a `msgspec.DecodeError`.

Owns what is done about nesting. A user may nest what belongs to a driver (`opaque.parameters`) thousands of levels deep, and the
API server stores it; reading it takes the stack of the reader, and so do comparing, copying and writing it. So what is deeper
than anybody reads is read as null. Nothing that is read here is written back whole.
"""

import re
from typing import Any, Final, Protocol, TypeVar

import msgspec

T_co = TypeVar("T_co", covariant=True)

DEEPEST: Final = 100
"""Levels of an object that are read. Kubernetes' own kinds have some twenty."""
DEEPEST_OPAQUE: Final = 50
"""Levels of a value that belongs to a driver that are read."""
_STRING_OR_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


class Decoder(Protocol[T_co]):
    """What reads bytes: a decoder of msgspec's."""

    def decode(self, buf: bytes | msgspec.Raw, /) -> T_co:
        """Read them."""


def read(decoder: Decoder[T_co], written: bytes | msgspec.Raw) -> T_co:
    """What was written. Raises msgspec.DecodeError, of which ValidationError is one."""
    try:
        try:
            return decoder.decode(written)
        except RecursionError:
            return decoder.decode(shallow(bytes(written)))
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from error


def read_plain(written: bytes | msgspec.Raw) -> Any:
    """What was written, in JSON's own types. Raises msgspec.DecodeError."""
    return read(_PLAIN, written)


def shallow(written: bytes, deepest: int = DEEPEST) -> bytes:
    """The same JSON with null for all that is nested deeper. What is no JSON stays none."""
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
    """The same value in JSON's types with None for all that is nested deeper."""
    return _cut(value, deepest) if _reaches(value, deepest + 1) else value


def is_cut(value: Any, deepest: int = DEEPEST_OPAQUE) -> bool:
    """Whether the value is nested as deeply as values are read, so that some of it may have been left out."""
    return _reaches(value, deepest)


def _reaches(value: Any, depth: int) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth - 1):
        if not level:
            return False
        level = [inner for each in level for inner in _inner(each)]
    return bool(level)


def _inner(value: dict[str, Any] | list[Any]) -> list[Any]:
    return [each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, dict | list)]


def _cut(value: Any, deepest: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if deepest == 0:
        return None
    if isinstance(value, dict):
        return {name: _cut(each, deepest - 1) for name, each in value.items()}
    return [_cut(each, deepest - 1) for each in value]


_PLAIN: Final = msgspec.json.Decoder()
