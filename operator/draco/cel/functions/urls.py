"""URLs, as Go parses absolute URLs and paths, with its error texts."""

import re
from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.functions.costs import SAME_SIZE
from draco.cel.functions.overloads import row
from draco.cel.values.bounds import toil_of_url
from draco.cel.values.texts import quoted
from draco.cel.values.values import Url

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PORT: Final = re.compile(r":[0-9]*")
_IN_HOST: Final = frozenset("!$&'()*+,;=:[]<>\"-_.~")
_IN_USER: Final = frozenset("-._:~!$&'()*+,;=%@")
_IN_PATH: Final = frozenset("-_.~$&+,/:;=@!'()*")
_ESCAPED_BYTE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_HOST_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")


def url_complaint(text: str) -> str | None:
    """Return the error of Go's ParseRequestURI for a text; None for an absolute URL or path."""
    try:
        _parse_url(text, via_request=True)
    except EvaluationError as error:
        return str(error)
    return None


def parse_url(text: str) -> Url:
    """Parse an absolute URL or path. Raises EvaluationError."""
    complaint = url_complaint(text)
    if complaint is not None:
        raise EvaluationError(f"URL parse error during conversion from string: {complaint}")
    try:
        return _parse_url(text.partition("#")[0], via_request=False)
    except EvaluationError as error:
        raise EvaluationError(f"URL parse error during conversion from string: {error}") from None


def _parse_url(text: str, *, via_request: bool) -> Url:
    shown = f"parse {quoted(text)}: "
    if any(character < " " or character == "\x7f" for character in text):
        raise EvaluationError(f"{shown}net/url: invalid control character in URL")
    if not text:
        if via_request:
            raise EvaluationError(f"{shown}empty url")
        return Url("", "", "", "", "", "", "")
    scheme, rest = _scheme(shown, text)
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return Url(f"{scheme}:{rest}", scheme, "", "", "", "", query)
        if via_request:
            raise EvaluationError(f"{shown}invalid URI for request")
    host = ""
    if rest.startswith("//") and (scheme or (not via_request and not rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        host = _host(shown, authority)
    bad = _ESCAPE.search(rest)
    if bad:
        raise EvaluationError(f"{shown}invalid URL escape {quoted(rest[bad.start() : bad.start() + 3])}")
    hostname, port = _hostname_and_port(host)
    path = _escaped(rest)
    prefix = f"{scheme}:" if scheme else ""
    canonical = prefix + (f"//{host}" if host or scheme else "") + path + (f"?{query}" if query else "")
    return Url(canonical, scheme, host, hostname, port, path, query)


def _scheme(shown: str, text: str) -> tuple[str, str]:
    match = _SCHEME.match(text)
    if match:
        return match[1].lower(), match[2]
    if text.startswith(":"):
        raise EvaluationError(f"{shown}missing protocol scheme")
    return "", text


def _host(shown: str, authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at and not all(character.isascii() and (character.isalnum() or character in _IN_USER) for character in user):
        raise EvaluationError(f"{shown}net/url: invalid userinfo")
    if host.startswith("["):
        closing = host.rfind("]")
        if closing < 0:
            raise EvaluationError(f"{shown}missing ']' in host")
        after = host[closing + 1 :]
        if after and not _PORT.fullmatch(after):
            raise EvaluationError(f"{shown}invalid port {quoted(after)} after host")
    elif ":" in host:
        after = host[host.rfind(":") :]
        if not _PORT.fullmatch(after):
            raise EvaluationError(f"{shown}invalid port {quoted(after)} after host")
    for position, character in enumerate(host):
        if character == "%":
            escape = host[position : position + 3]
            if not _HOST_ESCAPE.fullmatch(escape) or (int(escape[1:], 16) < 0x80 and not host.startswith("[")):
                raise EvaluationError(f"{shown}invalid URL escape {quoted(escape)}")
        elif character.isascii() and not (character.isalnum() or character in _IN_HOST):
            raise EvaluationError(f"{shown}invalid character {quoted(character)} in host name")
    return _HOST_ESCAPE.sub(lambda match: chr(int(match[1], 16)), host) if host.startswith("[") else _unescaped(host)


def _hostname_and_port(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    if not colon or not (not port or (port.isascii() and port.isdigit())):
        name, port = host, ""
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    return name, port


def _escaped(path: str) -> str:
    """A path as written if Go accepts it unescaped; otherwise everything else is escaped."""
    if all(each in _IN_PATH or each in "%[]" or (each.isascii() and each.isalnum()) for each in path):
        return path
    data = path.encode("utf-8", "surrogatepass")
    out = []
    position = 0
    while position < len(data):
        byte = data[position]
        if byte == 0x25:
            byte = int(data[position + 1 : position + 3], 16)
            position += 2
        position += 1
        character = chr(byte)
        keep = byte < 0x80 and (character.isalnum() or character in "-_.~$&+,/:;=@")
        out.append(character if keep else f"%{byte:02X}")
    return "".join(out)


def _unescaped(text: str) -> str:
    data = _ESCAPED_BYTE.sub(lambda match: bytes((int(match[1], 16),)), text.encode("utf-8", "surrogatepass"))
    return data.decode("utf-8", "replace")


def _form_text(text: str) -> str:
    return _unescaped(text.replace("+", " "))


def _query(one: Url) -> dict[str, list[str]]:
    """The values of each name; malformed parts are left out, as in Go."""
    result: dict[str, list[str]] = {}
    for part in one.query.split("&"):
        if not part or ";" in part or _ESCAPE.search(part):
            continue
        name, _, value = part.partition("=")
        result.setdefault(_form_text(name), []).append(_form_text(value))
    return result


OVERLOADS: Final = {
    "standard": (
        row("string_to_url", "url(string) -> url", parse_url, cost=SAME_SIZE),
        row("url_get_scheme", "url.getScheme() -> string", lambda one: one.scheme),
        row("url_get_host", "url.getHost() -> string", lambda one: one.host),
        row("url_get_hostname", "url.getHostname() -> string", lambda one: one.hostname),
        row("url_get_port", "url.getPort() -> string", lambda one: one.port),
        row("url_get_escaped_path", "url.getEscapedPath() -> string", lambda one: one.escaped_path),
        row("url_get_query", "url.getQuery() -> map(string, list(string))", _query),
        row("is_url_string", "isURL(string) -> bool", lambda text: url_complaint(text) is None, toil=toil_of_url),
    )
}
