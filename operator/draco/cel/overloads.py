"""Overloads: every function of the language with the types it takes and gives.

Owns the table, and how its rows are read. A row is `overload_id  signature`, where the id is the name under which costs are kept
(and by which Kubernetes names the overload), and a signature is `function(types) -> type` or `type.function(types) -> type`;
capital letters are type variables. The order of a function's rows counts: where the type of an argument is not known yet, the
first one that fits decides it. What a function does is not told here.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import msgspec

from draco.cel import types
from draco.cel.types import Type


class Overload(msgspec.Struct, frozen=True):
    """One way to call a function. `parameters` begins with the receiver's type where `is_member` says there is one."""

    id: str
    function: str
    is_member: bool
    parameters: tuple[Type, ...]
    result: Type
    variables: tuple[str, ...]


_OPERATORS: Final = """
conditional                   _?_:_(bool, A, A) -> A
logical_and                   _&&_(bool, bool) -> bool
logical_or                    _||_(bool, bool) -> bool
logical_not                   !_(bool) -> bool
not_strictly_false            @not_strictly_false(bool) -> bool
equals                        _==_(A, A) -> bool
not_equals                    _!=_(A, A) -> bool
add_bytes                     _+_(bytes, bytes) -> bytes
add_double                    _+_(double, double) -> double
add_duration_duration         _+_(duration, duration) -> duration
add_duration_timestamp        _+_(duration, timestamp) -> timestamp
add_timestamp_duration        _+_(timestamp, duration) -> timestamp
add_int64                     _+_(int, int) -> int
add_list                      _+_(list(A), list(A)) -> list(A)
add_string                    _+_(string, string) -> string
add_uint64                    _+_(uint, uint) -> uint
divide_double                 _/_(double, double) -> double
divide_int64                  _/_(int, int) -> int
divide_uint64                 _/_(uint, uint) -> uint
modulo_int64                  _%_(int, int) -> int
modulo_uint64                 _%_(uint, uint) -> uint
multiply_double               _*_(double, double) -> double
multiply_int64                _*_(int, int) -> int
multiply_uint64               _*_(uint, uint) -> uint
negate_double                 -_(double) -> double
negate_int64                  -_(int) -> int
subtract_double               _-_(double, double) -> double
subtract_duration_duration    _-_(duration, duration) -> duration
subtract_int64                _-_(int, int) -> int
subtract_timestamp_duration   _-_(timestamp, duration) -> timestamp
subtract_timestamp_timestamp  _-_(timestamp, timestamp) -> duration
subtract_uint64               _-_(uint, uint) -> uint
index_list                    _[_](list(A), int) -> A
index_map                     _[_](map(A, B), A) -> B
optional_list_index_int       _[_](optional(list(V)), int) -> optional(V)
optional_map_index_value      _[_](optional(map(K, V)), K) -> optional(V)
list_optindex_optional_int    _[?_](list(V), int) -> optional(V)
optional_list_optindex_optional_int   _[?_](optional(list(V)), int) -> optional(V)
map_optindex_optional_value   _[?_](map(K, V), K) -> optional(V)
optional_map_optindex_optional_value  _[?_](optional(map(K, V)), K) -> optional(V)
select_optional_field         _?._(dyn, string) -> optional(V)
in_list                       @in(A, list(A)) -> bool
in_map                        @in(A, map(A, B)) -> bool
"""

_CONVERSIONS: Final = """
size_bytes                    size(bytes) -> int
bytes_size                    bytes.size() -> int
size_list                     size(list(A)) -> int
list_size                     list(A).size() -> int
size_map                      size(map(A, B)) -> int
map_size                      map(A, B).size() -> int
size_string                   size(string) -> int
string_size                   string.size() -> int
type                          type(A) -> type(A)
bool_to_bool                  bool(bool) -> bool
string_to_bool                bool(string) -> bool
bytes_to_bytes                bytes(bytes) -> bytes
string_to_bytes               bytes(string) -> bytes
double_to_double              double(double) -> double
int64_to_double               double(int) -> double
string_to_double              double(string) -> double
uint64_to_double              double(uint) -> double
duration_to_duration          duration(duration) -> duration
string_to_duration            duration(string) -> duration
to_dyn                        dyn(A) -> dyn
int64_to_int64                int(int) -> int
double_to_int64               int(double) -> int
duration_to_int64             int(duration) -> int
string_to_int64               int(string) -> int
timestamp_to_int64            int(timestamp) -> int
uint64_to_int64               int(uint) -> int
string_to_string              string(string) -> string
bool_to_string                string(bool) -> string
bytes_to_string               string(bytes) -> string
double_to_string              string(double) -> string
duration_to_string            string(duration) -> string
int64_to_string               string(int) -> string
timestamp_to_string           string(timestamp) -> string
uint64_to_string              string(uint) -> string
ip_to_string                  string(ip) -> string
cidr_to_string                string(cidr) -> string
timestamp_to_timestamp        timestamp(timestamp) -> timestamp
int64_to_timestamp            timestamp(int) -> timestamp
string_to_timestamp           timestamp(string) -> timestamp
uint64_to_uint64              uint(uint) -> uint
double_to_uint64              uint(double) -> uint
int64_to_uint64               uint(int) -> uint
string_to_uint64              uint(string) -> uint
"""

_STRINGS: Final = """
contains_string               string.contains(string) -> bool
ends_with_string              string.endsWith(string) -> bool
starts_with_string            string.startsWith(string) -> bool
matches                       matches(string, string) -> bool
matches_string                string.matches(string) -> bool
string_find_string            string.find(string) -> string
string_find_all_string        string.findAll(string) -> list(string)
string_find_all_string_int    string.findAll(string, int) -> list(string)
string_char_at_int            string.charAt(int) -> string
string_index_of_string        string.indexOf(string) -> int
string_index_of_string_int    string.indexOf(string, int) -> int
string_last_index_of_string   string.lastIndexOf(string) -> int
string_last_index_of_string_int   string.lastIndexOf(string, int) -> int
string_lower_ascii            string.lowerAscii() -> string
string_replace_string_string      string.replace(string, string) -> string
string_replace_string_string_int  string.replace(string, string, int) -> string
string_split_string           string.split(string) -> list(string)
string_split_string_int       string.split(string, int) -> list(string)
string_substring_int          string.substring(int) -> string
string_substring_int_int      string.substring(int, int) -> string
string_trim                   string.trim() -> string
string_upper_ascii            string.upperAscii() -> string
string_format                 string.format(list(dyn)) -> string
strings_quote                 strings.quote(string) -> string
list_join                     list(string).join() -> string
list_join_string              list(string).join(string) -> string
"""

_OPTIONALS: Final = """
optional_of                   optional.of(V) -> optional(V)
optional_ofNonZeroValue       optional.ofNonZeroValue(V) -> optional(V)
optional_none                 optional.none() -> optional(V)
optional_value                optional(V).value() -> V
optional_hasValue             optional(V).hasValue() -> bool
optional_or_optional          optional(V).or(optional(V)) -> optional(V)
optional_orValue_value        optional(V).orValue(V) -> V
list_last                     list(V).last() -> optional(V)
list_first                    list(V).first() -> optional(V)
optional_unwrap               optional.unwrap(list(optional(V))) -> list(V)
optional_unwrapOpt            list(optional(V)).unwrapOpt() -> list(V)
"""

_LISTS: Final = """
list_sets_contains_list       sets.contains(list(T), list(T)) -> bool
list_sets_equivalent_list     sets.equivalent(list(T), list(T)) -> bool
list_sets_intersects_list     sets.intersects(list(T), list(T)) -> bool
@mapInsert_map_key_value      cel.@mapInsert(map(K, V), K, V) -> map(K, V)
@mapInsert_map_map            cel.@mapInsert(map(K, V), map(K, V)) -> map(K, V)
"""

_LIST_POSITIONS: Final = """
list_a_index_of_int           list(A).indexOf(A) -> int
list_a_last_index_of_int      list(A).lastIndexOf(A) -> int
"""

_EXTENDED_LISTS: Final = """
list_slice                    list(T).slice(int, int) -> list(T)
list_flatten                  list(list(T)).flatten() -> list(T)
list_flatten_int              list(dyn).flatten(int) -> list(dyn)
lists_range                   lists.range(int) -> list(int)
list_reverse                  list(T).reverse() -> list(T)
list_distinct                 list(T).distinct() -> list(T)
"""

_INCLUDES: Final = """
list_includes_dyn_dyn         dyn.includes(dyn) -> bool
"""

_RESOURCES: Final = """
string_to_quantity            quantity(string) -> quantity
is_quantity_string            isQuantity(string) -> bool
quantity_sign                 sign(quantity) -> int
quantity_is_greater_than      quantity.isGreaterThan(quantity) -> bool
quantity_is_less_than         quantity.isLessThan(quantity) -> bool
quantity_compare_to           quantity.compareTo(quantity) -> int
quantity_get_float            quantity.asApproximateFloat() -> double
quantity_get_int              quantity.asInteger() -> int
quantity_is_integer           quantity.isInteger() -> bool
quantity_add                  quantity.add(quantity) -> quantity
quantity_add_int              quantity.add(int) -> quantity
quantity_sub                  quantity.sub(quantity) -> quantity
quantity_sub_int              quantity.sub(int) -> quantity
"""

_SEMVER: Final = """
string_to_semver              semver(string) -> semver
string_bool_to_semver         semver(string, bool) -> semver
is_semver_string              isSemver(string) -> bool
is_semver_string_bool         isSemver(string, bool) -> bool
semver_is_greater_than        semver.isGreaterThan(semver) -> bool
semver_is_less_than           semver.isLessThan(semver) -> bool
semver_compare_to             semver.compareTo(semver) -> int
semver_major                  semver.major() -> int
semver_minor                  semver.minor() -> int
semver_patch                  semver.patch() -> int
"""

_NETWORK: Final = """
string_to_url                 url(string) -> url
url_get_scheme                url.getScheme() -> string
url_get_host                  url.getHost() -> string
url_get_hostname              url.getHostname() -> string
url_get_port                  url.getPort() -> string
url_get_escaped_path          url.getEscapedPath() -> string
url_get_query                 url.getQuery() -> map(string, list(string))
is_url_string                 isURL(string) -> bool
string_to_ip                  ip(string) -> ip
cidr_ip                       cidr.ip() -> ip
ip_family                     ip.family() -> int
ip_is_canonical               ip.isCanonical(string) -> bool
ip_is_unspecified             ip.isUnspecified() -> bool
ip_is_loopback                ip.isLoopback() -> bool
ip_is_link_local_multicast    ip.isLinkLocalMulticast() -> bool
ip_is_link_local_unicast      ip.isLinkLocalUnicast() -> bool
ip_is_global_unicast          ip.isGlobalUnicast() -> bool
is_ip                         isIP(string) -> bool
string_to_cidr                cidr(string) -> cidr
cidr_contains_ip_string       cidr.containsIP(string) -> bool
cidr_contains_ip_ip           cidr.containsIP(ip) -> bool
cidr_contains_cidr_string     cidr.containsCIDR(string) -> bool
cidr_contains_cidr            cidr.containsCIDR(cidr) -> bool
cidr_prefix_length            cidr.prefixLength() -> int
cidr_masked                   cidr.masked() -> cidr
is_cidr                       isCIDR(string) -> bool
format-validate               format.validate(string) -> optional(list(string))
format-named                  format.named(string) -> optional(format)
"""

_AUTHORIZATION: Final = """
authorizer_path               authorizer.path(string) -> path
authorizer_group              authorizer.group(string) -> group
authorizer_serviceaccount     authorizer.serviceAccount(string, string) -> authorizer
groupcheck_resource           group.resource(string) -> resource
resourcecheck_subresource     resource.subresource(string) -> resource
resourcecheck_namespace       resource.namespace(string) -> resource
resourcecheck_name            resource.name(string) -> resource
authorizer_fieldselector      resource.fieldSelector(string) -> resource
authorizer_labelselector      resource.labelSelector(string) -> resource
pathcheck_check               path.check(string) -> decision
resourcecheck_check           resource.check(string) -> decision
decision_errored              decision.errored() -> bool
decision_error                decision.error() -> string
decision_allowed              decision.allowed() -> bool
decision_reason               decision.reason() -> string
"""
"""No selector can have an authorizer, but Kubernetes knows the functions, so its sentences for their misuse differ."""

_FORMATS: Final = (
    "dns1123Label dns1123Subdomain dns1035Label qualifiedName dns1123LabelPrefix dns1123SubdomainPrefix dns1035LabelPrefix "
    "labelValue uri uuid byte date datetime"
)
_DOTTED: Final = frozenset({"ip.isCanonical", "format.named"} | {f"format.{name}" for name in _FORMATS.split()})
"""Functions whose own name has a dot behind what is also the name of a type."""

_TIME_PARTS: Final = {
    "getFullYear": "year",
    "getMonth": "month",
    "getDayOfYear": "day_of_year",
    "getDayOfMonth": "day_of_month",
    "getDate": "day_of_month_1_based",
    "getDayOfWeek": "day_of_week",
    "getHours": "hours",
    "getMinutes": "minutes",
    "getSeconds": "seconds",
    "getMilliseconds": "milliseconds",
}
_ORDERS: Final = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}
_ORDERED: Final = ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration")
_COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_NUMBERS: Final = {"int": "int64", "uint": "uint64", "double": "double"}


def _generated() -> str:
    """Rows that follow a pattern."""
    rows = []
    for operator, name in _ORDERS.items():
        for kind in _ORDERED:
            rows.append(f"{name}_{_NUMBERS.get(kind, kind)} {operator}({kind}, {kind}) -> bool")
            others = sorted(_NUMBERS.keys() - {kind}) if kind in _NUMBERS else ()
            rows += [f"{name}_{_NUMBERS[kind]}_{_NUMBERS[o]} {operator}({kind}, {o}) -> bool" for o in others]
    for function, part in _TIME_PARTS.items():
        rows.append(f"timestamp_to_{part} timestamp.{function}() -> int")
        suffix = "tz" if part == "seconds" else "with_tz"
        rows.append(f"timestamp_to_{part}_{suffix} timestamp.{function}(string) -> int")
        if function in {"getHours", "getMinutes", "getSeconds", "getMilliseconds"}:
            rows.append(f"duration_to_{part} duration.{function}() -> int")
    for kind in _COMPARABLE:
        rows.append(f"list_{kind}_is_sorted_bool list({kind}).isSorted() -> bool")
        rows.append(f"list_{kind}_max_{kind} list({kind}).max() -> {kind}")
        rows.append(f"list_{kind}_min_{kind} list({kind}).min() -> {kind}")
    rows += [f"list_{kind}_sum_{kind} list({kind}).sum() -> {kind}" for kind in ("int", "uint", "double", "duration")]
    rows += [f"format.{name} format.{name}() -> format" for name in _FORMATS.split()]
    return "\n".join(rows)


def _generated_for_extended_lists() -> str:
    rows = []
    for kind in _COMPARABLE:
        name = {"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}.get(kind, kind)
        rows.append(f"list_{name}_sort list({kind}).sort() -> list({kind})")
        rows.append(f"list_{name}_sortByAssociatedKeys list(T).@sortByAssociatedKeys(list({kind})) -> list(T)")
    return "\n".join(rows)


_NAMES: Final[dict[str, Type]] = {
    **{
        kind.name: kind
        for kind in (types.DYN, types.BOOL, types.INT, types.UINT, types.DOUBLE, types.STRING, types.BYTES)
    },
    "duration": types.DURATION,
    "timestamp": types.TIMESTAMP,
    "quantity": types.QUANTITY,
    "semver": types.SEMVER,
    "url": types.URL,
    "ip": types.IP,
    "cidr": types.CIDR,
    "format": types.FORMAT,
    **{
        name.lower().removesuffix("check"): Type("object", f"kubernetes.authorization.{name}")
        for name in ("Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision")
    },
}
_COMPOSED: Final[dict[str, Callable[..., Type]]] = {
    "list": types.list_of,
    "map": types.map_of,
    "optional": types.optional_of,
    "type": types.type_of,
}


def _split(text: str) -> list[str]:
    """The parts between the commas that stand outside brackets."""
    parts, level, start = [], 0, 0
    for index, character in enumerate(text):
        level += (character == "(") - (character == ")")
        if character == "," and level == 0:
            parts.append(text[start:index])
            start = index + 1
    last = text[start:].strip()
    return [part.strip() for part in parts] + ([last] if last else [])


def _type(text: str) -> Type:
    name, bracket, inner = text.partition("(")
    if bracket:
        return _COMPOSED[name](*map(_type, _split(inner[:-1])))
    return types.variable(name) if name.isupper() and len(name) == 1 else _NAMES[name]


def _overload(row: str) -> Overload:
    identity, signature = row.split(maxsplit=1)
    call, _, result = signature.rpartition(" -> ")
    opening = _last_opening(call)
    head, arguments = call[:opening], _split(call[opening + 1 : -1])
    receiver, dot, function = head.rpartition(".")
    is_member = bool(dot) and head not in _DOTTED and (receiver in _NAMES or receiver.endswith(")"))
    if is_member:
        arguments.insert(0, receiver)
    variables = tuple(dict.fromkeys(re.findall(r"\b[A-Z]\b", " ".join([result, *arguments]))))
    parameters = tuple(map(_type, arguments))
    return Overload(identity, function if is_member else head, is_member, parameters, _type(result), variables)


def _last_opening(call: str) -> int:
    """Where the bracket opens that the last one closes."""
    level = 0
    for index in range(len(call) - 1, -1, -1):
        level += (call[index] == ")") - (call[index] == "(")
        if level == 0:
            return index
    raise ValueError(call)


@cache
def _rows(library: str) -> tuple[Overload, ...]:
    rows = {
        "standard": [
            _OPERATORS,
            _CONVERSIONS,
            _STRINGS,
            _OPTIONALS,
            _LISTS,
            _RESOURCES,
            _NETWORK,
            _AUTHORIZATION,
            _generated(),
        ],
        "early_positions": [_LIST_POSITIONS],
        "late_positions": [_LIST_POSITIONS],
        "semver": [_SEMVER],
        "lists": [_EXTENDED_LISTS, _generated_for_extended_lists()],
        "includes": [_INCLUDES],
    }
    return tuple(_overload(row) for block in rows[library] for row in block.splitlines() if row)


_ORDER: Final = ("early_positions", "standard", "late_positions", "semver", "lists", "includes")


@cache
def table(libraries: frozenset[str]) -> Mapping[str, tuple[Overload, ...]]:
    """Overloads by the name of their function, for the named libraries beside the standard ones: those of an environment."""
    found: dict[str, list[Overload]] = {}
    for overload in (one for library in _ORDER if library in libraries | {"standard"} for one in _rows(library)):
        found.setdefault(overload.function, []).append(overload)
    return {function: tuple(overloads) for function, overloads in found.items()}
