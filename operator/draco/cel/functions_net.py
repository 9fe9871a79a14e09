"""Addresses, networks and URLs, as Kubernetes reads them.

Owns parsing to Go's rules (no zones, no IPv4 inside IPv6, absolute URLs) and the words for what is refused.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_network
from typing import Final

from draco.cel.dispatch import FunctionTable, overload
from draco.cel.errors import EvaluationError
from draco.cel.texts import quoted
from draco.cel.values import Cidr, Ip, Url, Value

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PORT: Final = re.compile(r":[0-9]*")
_IN_HOST: Final = frozenset("!$&'()*+,;=:[]<>\"-_.~")
_IN_USER: Final = frozenset("-._:~!$&'()*+,;=%@")
_IN_PATH: Final = frozenset("-_.~$&+,/:;=@!'()*")
_HEX_DIGITS: Final = "0123456789abcdefABCDEF"
_IPV6_FIELDS: Final = 8
_ESCAPED_BYTE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_HOST_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")


def _address(text: str) -> IPv4Address | IPv6Address:
    """Raises EvaluationError, with the short reason only."""
    for character in text:
        if character == ".":
            return _ipv4(text)
        if character == ":":
            return _ipv6(text)
        if character == "%":
            raise EvaluationError(f"ParseAddr({quoted(text)}): missing IPv6 address")
    raise EvaluationError(f"ParseAddr({quoted(text)}): unable to parse IP")


def _ipv4(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except AddressValueError:
        raise EvaluationError(f"ParseAddr({quoted(text)}): {_ipv4_reason(text)}") from None


def _ipv4_reason(text: str) -> str:
    """The first thing wrong, from left to right."""
    value, digits, fields = 0, 0, 0
    for position, character in enumerate(text):
        if character in "0123456789":
            if digits and value == 0:
                return "IPv4 field has octet with leading zero"
            value, digits = value * 10 + int(character), digits + 1
            if value > 255:
                return "IPv4 field has value >255"
        elif character == ".":
            if position == 0 or position == len(text) - 1 or text[position - 1] == ".":
                return f"IPv4 field must have at least one digit (at {quoted(text[position:])})"
            if fields == 3:
                return "IPv4 address too long"
            value, digits, fields = 0, 0, fields + 1
        else:
            return f"unexpected character (at {quoted(text[position:])})"
    return "IPv4 address too short"


def _ipv6(text: str) -> IPv6Address:
    reason = _ipv6_reason(text)
    if reason is not None:
        raise EvaluationError(f"ParseAddr({quoted(text)}): {reason}")
    return IPv6Address(text)


def _ipv6_reason(text: str) -> str | None:  # noqa: PLR0911, PLR0912 - one per thing that can be wrong
    """The first thing wrong, from left to right; None if nothing is."""
    rest, percent, zone = text.partition("%")
    if percent and not zone:
        return "zone must be a non-empty string"
    fields, ellipsis = 0, rest.startswith("::")
    if ellipsis:
        rest = rest[2:]
        if not rest:
            return None
    while fields < _IPV6_FIELDS:
        length = len(rest) - len(rest.lstrip(_HEX_DIGITS))
        if length > 4:
            return f"each group must have 4 or less digits (at {quoted(rest)})"
        if not length:
            return f"each colon-separated field must have at least one digit (at {quoted(rest)})"
        if rest[length : length + 1] == ".":
            return _embedded_ipv4_reason(rest, fields, ellipsis=ellipsis)
        fields += 1
        rest = rest[length:]
        if not rest:
            break
        if rest[0] != ":":
            return f"unexpected character, want colon (at {quoted(rest)})"
        if len(rest) == 1:
            return f"colon must be followed by more characters (at {quoted(rest)})"
        rest = rest[1:]
        if rest[0] == ":":
            if ellipsis:
                return f"multiple :: in address (at {quoted(rest)})"
            ellipsis, rest = True, rest[1:]
            if not rest:
                break
    if rest:
        return f"trailing garbage after address (at {quoted(rest)})"
    return _count_reason(fields, ellipsis=ellipsis)


def _embedded_ipv4_reason(rest: str, fields: int, *, ellipsis: bool) -> str | None:
    if not ellipsis and fields != _IPV6_FIELDS - 2:
        return f"embedded IPv4 address must replace the final 2 fields of the address (at {quoted(rest)})"
    if fields + 2 > _IPV6_FIELDS:
        return f"too many hex fields to fit an embedded IPv4 at the end of the address (at {quoted(rest)})"
    try:
        IPv4Address(rest)
    except AddressValueError:
        return _ipv4_reason(rest)
    return _count_reason(fields + 2, ellipsis=ellipsis)


def _count_reason(fields: int, *, ellipsis: bool) -> str | None:
    if fields < _IPV6_FIELDS:
        return None if ellipsis else "address string too short"
    return "the :: must expand to at least one field of zeros" if ellipsis else None


def parse_ip(text: str) -> Ip:
    """An address. Raises EvaluationError."""
    try:
        address = _address(text)
    except EvaluationError as error:
        raise EvaluationError(f"IP Address {quoted(text)} parse error during conversion from string: {error}") from None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            raise EvaluationError(f"IP address {quoted(text)} with zone value is not allowed")
        if address.ipv4_mapped is not None:
            raise EvaluationError(f"IPv4-mapped IPv6 address {quoted(text)} is not allowed")
    return Ip(address)


def parse_cidr(text: str) -> Cidr:
    """An address with a prefix length. Raises EvaluationError."""
    prefix = "network address parse error during conversion from string: "
    start, slash, length = text.rpartition("/")
    try:
        address, bits = _prefix(start, slash, length)
    except EvaluationError as error:
        raise EvaluationError(f"{prefix}{prefix}netip.ParsePrefix({quoted(text)}): {error}") from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise EvaluationError(f"{prefix}IPv4-mapped IPv6 address {quoted(text)} is not allowed")
    return Cidr(address, bits)


def _prefix(start: str, slash: str, length: str) -> tuple[IPv4Address | IPv6Address, int]:
    """Raises EvaluationError, with the short reason only."""
    if not slash:
        raise EvaluationError("no '/'")
    address = _address(start)
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise EvaluationError("IPv6 zones cannot be present in a prefix")
    if not (length.isascii() and length.isdigit()) or (len(length) > 1 and length[0] == "0"):
        raise EvaluationError(f"bad bits after slash: {quoted(length)}")
    if len(length) > 3 or int(length) > address.max_prefixlen:
        raise EvaluationError("prefix length out of range")
    return address, int(length)


def address_text(address: IPv4Address | IPv6Address) -> str:
    """The canonical spelling."""
    return str(address)


def _is(parse: Value) -> Value:
    def test(text: str) -> bool:
        try:
            parse(text)
        except EvaluationError:
            return False
        return True

    return test


def _is_link_local_multicast(one: Ip) -> bool:
    if isinstance(one.address, IPv4Address):
        return one.address.packed[:3] == b"\xe0\x00\x00"
    return one.address.packed[0] == 0xFF and one.address.packed[1] & 0x0F == 0x02


def _is_global_unicast(one: Ip) -> bool:
    """Go's notion: everything that is none of the special kinds, private addresses included."""
    address = one.address
    if str(address) == "255.255.255.255":
        return False
    return not (address.is_unspecified or address.is_loopback or address.is_multicast or _is_link_local_unicast(one))


def _is_link_local_unicast(one: Ip) -> bool:
    packed = one.address.packed
    if isinstance(one.address, IPv4Address):
        return packed[:2] == b"\xa9\xfe"
    return packed[0] == 0xFE and packed[1] & 0xC0 == 0x80


def _same_bits(one: IPv4Address | IPv6Address, other: IPv4Address | IPv6Address, bits: int) -> bool:
    if one.version != other.version:
        return False
    rest = one.max_prefixlen - bits
    return int(one) >> rest == int(other) >> rest


def _contains_ip(network: Cidr, other: Ip) -> bool:
    return _same_bits(network.address, other.address, network.prefix_length)


def _contains_cidr(network: Cidr, other: Cidr) -> bool:
    return network.prefix_length <= other.prefix_length and _same_bits(
        network.address, other.address, network.prefix_length
    )


def _masked(network: Cidr) -> Cidr:
    return Cidr(
        ip_network((network.address, network.prefix_length), strict=False).network_address, network.prefix_length
    )


def _contains_ip_text(network: Cidr, text: str) -> bool:
    try:
        return _contains_ip(network, parse_ip(text))
    except EvaluationError:
        raise EvaluationError("no such overload") from None


def _contains_cidr_text(network: Cidr, text: str) -> bool:
    return _contains_cidr(network, parse_cidr(text))


def url_complaint(text: str) -> str | None:
    """What Go's ParseRequestURI says against a text; None if it is an absolute URL or path."""
    try:
        _parse_url(text, via_request=True)
    except EvaluationError as error:
        return str(error)
    return None


def parse_url(text: str) -> Url:
    """An absolute URL or path. Raises EvaluationError."""
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
    """A path as written if its escapes are Go's own or valid, with everything else escaped."""
    if all(_may_stand(character) for character in path):
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


def _may_stand(character: str) -> bool:
    return character in _IN_PATH or character in "%[]" or (character.isascii() and character.isalnum())


def _unescaped(text: str) -> str:
    data = _ESCAPED_BYTE.sub(lambda match: bytes((int(match[1], 16),)), text.encode("utf-8", "surrogatepass"))
    return data.decode("utf-8", "replace")


def _form_text(text: str) -> str:
    return _unescaped(text.replace("+", " "))


def _query(one: Url) -> dict[str, list[str]]:
    """The values of each name; parts that are not well-formed are left out, as in Go."""
    result: dict[str, list[str]] = {}
    for part in one.query.split("&"):
        if not part or ";" in part or _ESCAPE.search(part):
            continue
        name, _, value = part.partition("=")
        result.setdefault(_form_text(name), []).append(_form_text(value))
    return result


def _family(one: Ip) -> int:
    return int(one.address.version)


FUNCTIONS: Final[FunctionTable] = {
    "ip": (overload(parse_ip, str), overload(lambda one: Ip(one.address), Cidr)),
    "family": (overload(_family, Ip),),
    "ip.isCanonical": (overload(lambda text: address_text(parse_ip(text).address) == text, str),),
    "isUnspecified": (overload(lambda one: one.address.is_unspecified, Ip),),
    "isLoopback": (overload(lambda one: one.address.is_loopback, Ip),),
    "isLinkLocalMulticast": (overload(_is_link_local_multicast, Ip),),
    "isLinkLocalUnicast": (overload(_is_link_local_unicast, Ip),),
    "isGlobalUnicast": (overload(_is_global_unicast, Ip),),
    "isIP": (overload(_is(parse_ip), str),),
    "cidr": (overload(parse_cidr, str),),
    "isCIDR": (overload(_is(parse_cidr), str),),
    "containsIP": (overload(_contains_ip_text, Cidr, str), overload(_contains_ip, Cidr, Ip)),
    "containsCIDR": (overload(_contains_cidr_text, Cidr, str), overload(_contains_cidr, Cidr, Cidr)),
    "prefixLength": (overload(lambda one: one.prefix_length, Cidr),),
    "masked": (overload(_masked, Cidr),),
    "url": (overload(parse_url, str),),
    "isURL": (overload(lambda text: url_complaint(text) is None, str),),
    "getScheme": (overload(lambda one: one.scheme, Url),),
    "getHost": (overload(lambda one: one.host, Url),),
    "getHostname": (overload(lambda one: one.hostname, Url),),
    "getPort": (overload(lambda one: one.port, Url),),
    "getEscapedPath": (overload(lambda one: one.escaped_path, Url),),
    "getQuery": (overload(_query, Url),),
}
