"""IP addresses and networks, parsed by Go's rules (no zones, no IPv4 inside IPv6), with its error texts."""

from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_network
from typing import Final

from draco.cel.errors import EvaluationError
from draco.cel.functions.costs import (
    ADDRESS_OF_NETWORK,
    CONTAINING_CIDR,
    CONTAINING_CIDR_TEXT,
    CONTAINING_IP,
    CONTAINING_IP_TEXT,
    PARSING_ADDRESS,
    READING,
    READING_TWICE,
)
from draco.cel.functions.overloads import row, succeeds
from draco.cel.values.texts import quoted
from draco.cel.values.values import Cidr, Ip

_HEX_DIGITS: Final = "0123456789abcdefABCDEF"
_IPV6_FIELDS: Final = 8


def _address(text: str) -> IPv4Address | IPv6Address:
    """Parse an address. Raises EvaluationError with the short reason only."""
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
    """The first error from the left, or None."""
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
    """Parse an address. Raises EvaluationError."""
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
    """Parse an address with a prefix length. Raises EvaluationError."""
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
    """Address and length of a network. Raises EvaluationError with the short reason only."""
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


def _is_link_local_multicast(one: Ip) -> bool:
    if isinstance(one.address, IPv4Address):
        return one.address.packed[:3] == b"\xe0\x00\x00"
    return one.address.packed[0] == 0xFF and one.address.packed[1] & 0x0F == 0x02


def _is_global_unicast(one: Ip) -> bool:
    """Go's definition: every address without a special kind, private addresses included."""
    address = one.address
    if str(address) == "255.255.255.255":
        return False
    return not (address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local)


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


OVERLOADS: Final = {
    "standard": (
        row("string_to_ip", "ip(string) -> ip", parse_ip, cost=PARSING_ADDRESS),
        row("cidr_ip", "cidr.ip() -> ip", lambda one: Ip(one.address), cost=ADDRESS_OF_NETWORK),
        row("ip_to_string", "string(ip) -> string", lambda one: str(one.address)),
        row("cidr_to_string", "string(cidr) -> string", lambda one: f"{one.address}/{one.prefix_length}"),
        row("ip_family", "ip.family() -> int", lambda one: int(one.address.version)),
        row(
            "ip_is_canonical",
            "ip.isCanonical(string) -> bool",
            lambda text: str(parse_ip(text).address) == text,
            cost=READING_TWICE,
        ),
        row("ip_is_unspecified", "ip.isUnspecified() -> bool", lambda one: one.address.is_unspecified),
        row("ip_is_loopback", "ip.isLoopback() -> bool", lambda one: one.address.is_loopback),
        row("ip_is_link_local_multicast", "ip.isLinkLocalMulticast() -> bool", _is_link_local_multicast),
        row("ip_is_link_local_unicast", "ip.isLinkLocalUnicast() -> bool", lambda one: one.address.is_link_local),
        row("ip_is_global_unicast", "ip.isGlobalUnicast() -> bool", _is_global_unicast),
        row("is_ip", "isIP(string) -> bool", succeeds(parse_ip), cost=READING),
        row("string_to_cidr", "cidr(string) -> cidr", parse_cidr, cost=READING),
        row("cidr_contains_ip_string", "cidr.containsIP(string) -> bool", _contains_ip_text, cost=CONTAINING_IP_TEXT),
        row("cidr_contains_ip_ip", "cidr.containsIP(ip) -> bool", _contains_ip, cost=CONTAINING_IP),
        row(
            "cidr_contains_cidr_string",
            "cidr.containsCIDR(string) -> bool",
            lambda network, text: _contains_cidr(network, parse_cidr(text)),
            cost=CONTAINING_CIDR_TEXT,
        ),
        row("cidr_contains_cidr", "cidr.containsCIDR(cidr) -> bool", _contains_cidr, cost=CONTAINING_CIDR),
        row("cidr_prefix_length", "cidr.prefixLength() -> int", lambda one: one.prefix_length),
        row("cidr_masked", "cidr.masked() -> cidr", _masked),
        row("is_cidr", "isCIDR(string) -> bool", succeeds(parse_cidr), cost=READING),
    )
}  # fmt: skip
