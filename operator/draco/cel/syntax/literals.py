"""Literals: from a token to its value. Errors have Kubernetes' text without a position, which the parser adds."""

import re
from typing import Final

_INT64: Final = 1 << 63
_UINT64: Final = 1 << 64
_SIMPLE: Final = dict(zip("abfnrtv\\'\"`?", "\a\b\f\n\r\t\v\\'\"`?", strict=True))
_ESCAPE: Final = re.compile(
    r"\\(?:[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)


class LiteralError(ValueError):
    """An invalid literal; `str()` is the reason without the position."""


def read_int(text: str, *, negative: bool) -> int:
    """Read a decimal or 0x literal; raises LiteralError outside int64."""
    value = _magnitude(text, "int")
    value = -value if negative else value
    if not -_INT64 <= value < _INT64:
        raise LiteralError("invalid int literal")
    return value


def read_uint(text: str) -> int:
    """Read the digits of a literal with suffix u; raises LiteralError outside uint64."""
    value = _magnitude(text, "uint")
    if value >= _UINT64:
        raise LiteralError("invalid uint literal")
    return value


def _magnitude(text: str, kind: str) -> int:
    digits, base, most = (text[2:].lstrip("0"), 16, 16) if text.startswith("0x") else (text.lstrip("0"), 10, 20)
    if len(digits) > most:  # Python has its own error for thousands of digits
        raise LiteralError(f"invalid {kind} literal")
    return int(digits or "0", base)


def read_double(text: str, *, negative: bool) -> float:
    """Read a literal with a point or exponent; raises LiteralError if it is too large for a double."""
    value = float(text)
    if value == float("inf"):
        raise LiteralError("invalid double literal")
    return -value if negative else value


def read_string(token: str) -> str:
    """Read the text of a quoted token, prefix included; raises LiteralError for a bad escape."""
    content, is_raw = _content(token)
    if is_raw or "\\" not in content:
        return content
    return _ESCAPE.sub(_character, content)


def read_bytes(token: str) -> bytes:
    r"""Read the bytes of a token that starts with b: characters as UTF-8, `\xff` and `\377` as one byte each."""
    content, is_raw = _content(token[1:])
    if is_raw or "\\" not in content:
        return content.encode("utf-8", "surrogatepass")
    result, end = bytearray(), 0
    for match in _ESCAPE.finditer(content):
        result += content[end : match.start()].encode("utf-8", "surrogatepass")
        end = match.end()
        hexadecimal, short, long, octal, other = match.groups()
        if hexadecimal is not None or octal is not None:
            result.append(int(hexadecimal, 16) if hexadecimal is not None else int(octal, 8))
        elif short is None and long is None and other in _SIMPLE:
            result += _SIMPLE[other].encode()
        else:
            raise LiteralError("unable to unescape string")
    return bytes(result + content[end:].encode("utf-8", "surrogatepass"))


def _content(token: str) -> tuple[str, bool]:
    """The text between the quotes with normalised newlines, and whether it is raw."""
    token = token.replace("\r\n", "\n").replace("\r", "\n")
    is_raw = token[0] in "rR"
    token = token[1:] if is_raw else token
    quotes = 3 if len(token) >= 6 and token[:3] in {'"""', "'''"} else 1
    return token[quotes:-quotes], is_raw


def _character(match: re.Match[str]) -> str:
    *codes, octal, other = match.groups()
    if other is not None:
        if other not in _SIMPLE:
            raise LiteralError("unable to unescape string")
        return _SIMPLE[other]
    code = int(octal, 8) if octal is not None else int(next(code for code in codes if code is not None), 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise LiteralError("invalid unicode code point")
    return chr(code)
