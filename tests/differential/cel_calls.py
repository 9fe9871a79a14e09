"""Random calls of every CEL function, each equally likely; most arguments have the right type.

Owns how an overload becomes a call and how its result shows: a selector's answer is only true, false or an error, so most results
are looked up in a map without that key, and the error names them.
"""

import random
from collections.abc import Callable

from draco.cel import STORED_EXPRESSIONS
from draco.cel.functions import table
from draco.cel.functions.overloads import Overload
from draco.cel.values import types
from draco.cel.values.types import Type

Expand = Callable[[str], str]

_UNSPEAKABLE = frozenset({"@not_strictly_false", "cel.@mapInsert", "_?._", "_&&_", "_||_"})
"""Functions that only macros call, or that the grammar of selectors already covers."""
_OPERATORS = {
    "_?_:_": "({}) ? ({}) : ({})",
    "!_": "!({})",
    "-_": "-({})",
    "_[_]": "({})[{}]",
    "_[?_]": "({})[?{}]",
    "@in": "({}) in ({})",
    "@sortByAssociatedKeys": "cel.bind(k, {1}, ({0}).sortBy(v, k[0]))",
}
_RULES = {
    "bool": ["$bool", "true", "$own.flag"],
    "int": ["$int", "1", "0", "$own.count"],
    "uint": ["$uint"],
    "double": ["$double"],
    "string": ["$string", "$own.model", '"a"'],
    "bytes": ["$bytes"],
    "duration": ["$duration"],
    "timestamp": ["$timestamp"],
    "kubernetes.Quantity": ["$quantity"],
    "kubernetes.Semver": ["$semver", "$own.version"],
    "kubernetes.URL": ["url($url)"],
    "kubernetes.NamedFormat": ["format.named($named).value()", "format.date()", "format.dns1123Label()"],
    "net.IP": ["ip($address)", "cidr($network).ip()"],
    "net.CIDR": ["cidr($network)", "cidr($network).masked()"],
    "dyn": ["$dyn", "$attribute", "$quantity", "$semver", "dyn($ints)", "$strings"],
    "type": ["type($dyn)"],
}
_TEXTS = {
    "format.named": "$named",
    "validate": '"a-b"',
    "ip": "$address",
    "isIP": "$address",
    "ip.isCanonical": "$address",
    "cidr": "$network",
    "isCIDR": "$network",
    "containsIP": "$address",
    "containsCIDR": "$network",
    "url": "$url",
    "isURL": "$url",
    "quantity": '"1.5Gi"',
    "isQuantity": '"-3m"',
    "semver": '"1.2.3-a+b"',
    "isSemver": '"v1.2"',
    "duration": '"-1h2m3.4s"',
    "timestamp": '"2024-02-29T12:34:56.7+01:30"',
    "double": '"1e3"',
    "int": '"-12"',
    "uint": '"12"',
    "bool": '"TRUE"',
    "matches": '"(a|b)+[^0-9]$$"',
    "find": '"[a-z]+"',
    "findAll": '"[A-Z0-9]"',
}
"""Texts that a function can parse, used in half of its calls."""
_ZONES = ['"Europe/Berlin"', '"-08:00"', '"UTC"', '"Asia/Kathmandu"', '"Nowhere/Land"']
_PLAIN = [types.INT, types.STRING, types.BOOL, types.DOUBLE, types.UINT, types.BYTES, types.DURATION, types.TIMESTAMP]


def _callable(overload: Overload) -> bool:
    parts = " ".join(map(str, (*overload.parameters, overload.result)))
    return overload.function not in _UNSPEAKABLE and "authorization" not in parts


OVERLOADS = [one for overloads in table(STORED_EXPRESSIONS.libraries).values() for one in overloads if _callable(one)]


def a_call(source: random.Random, expand: Expand) -> str:
    """A call of a random overload, as an expression whose answer depends on the result."""
    overload = source.choice(OVERLOADS)
    bound = {name: source.choice(_PLAIN) for name in overload.variables}
    wrong = source.choice([0, 0, 15, 40])
    arguments = []
    for parameter in overload.parameters:
        text = _argument(source, overload.function, _replaced(parameter, bound))
        if source.randrange(100) < wrong:
            text = source.choice(
                ["dyn({})", "$attribute", "$dyn", "dyn($own.names)", "$own.counts.reverse()[0]"]
            ).format(text)
        arguments.append(text)
    return expand(_shown(source, _spelled(overload, arguments), _replaced(overload.result, bound)))


def _argument(source: random.Random, function: str, of: Type) -> str:
    if of.name == "string" and function.startswith("get"):
        return source.choice(_ZONES)
    if of.name == "string" and function in _TEXTS and source.randrange(2):
        return _TEXTS[function]
    return _value(source, of)


def _value(source: random.Random, of: Type) -> str:
    if of.kind == "list":
        (inner,) = of.parameters
        if inner in {types.INT, types.STRING} and source.randrange(3):
            return "$ints" if inner is types.INT else "$strings"
        return f"[{', '.join(_value(source, inner) for _ in range(source.choice([0, 1, 2, 2, 3])))}]"
    if of.kind == "map":
        key, held = of.parameters
        if key.name not in {"string", "int", "uint", "bool"}:
            key = types.STRING
        return f"{{{_value(source, key)}: {_value(source, held)}}}"
    if of.name == "optional_type":
        one = f"optional.of({_value(source, of.parameters[0])})"
        return source.choice([one, one, "optional.none()"])
    return source.choice(_RULES[of.name])


def _replaced(of: Type, bound: dict[str, Type]) -> Type:
    if of.kind == "variable":
        return bound[of.name]
    return Type(of.kind, of.name, tuple(_replaced(part, bound) for part in of.parameters))


def _spelled(overload: Overload, arguments: list[str]) -> str:
    function = overload.function
    if function in _OPERATORS:
        return _OPERATORS[function].format(*arguments)
    if function.startswith("_"):
        return f"({arguments[0]}) {function.strip('_')} ({arguments[1]})"
    if overload.is_member:
        return f"({arguments[0]}).{function}({', '.join(arguments[1:])})"
    return f"{function}({', '.join(arguments)})"


_SHOWN = {
    "kubernetes.Quantity": "{{'': true}}[string(({0}).asApproximateFloat())]",
    "kubernetes.Semver": "cel.bind(r, {0}, {{'': true}}['%s'.format([[r.major(), r.minor(), r.patch()]])])",
    "kubernetes.URL": "({0}).getHost() == 'h'",
    "kubernetes.NamedFormat": "({0}).validate('A.b').orValue(['fine']) == ['']",
    "net.IP": "{{'': true}}[string({0})]",
    "net.CIDR": "{{'': true}}[string({0})]",
}


def _shown(source: random.Random, call: str, of: Type) -> str:
    if of.name == "optional_type":
        return f"cel.bind(r, {call}, r.hasValue() && {_shown(source, 'r.value()', of.parameters[0])})"
    if of.name == "bool" and source.randrange(2):
        return call
    shown = _SHOWN.get(of.name, "{{'': true}}['%s'.format([{0}])]").format(call)
    return shown if source.randrange(4) else f"{{?'': optional.of(1)}}.size() == 1 && dyn({call}) != null"
