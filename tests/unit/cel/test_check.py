"""The type check: the messages with which Kubernetes 1.37 refuses an expression, and what it accepts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draco.cel.checking.check import check, check_result
from draco.cel.checking.environment import STORED_EXPRESSIONS, Environment, new_expressions
from draco.cel.checking.validate import validate
from draco.cel.errors import CompileError
from draco.cel.syntax.parse import parse
from tests.doubles.work import at_most


def verdict(expression: str, environment: Environment = STORED_EXPRESSIONS) -> str:
    """The message of the refusal, or ""."""
    try:
        checked = check(parse(expression), environment)
        validate(checked)
        check_result(checked, environment)
    except CompileError as error:
        return str(error).removeprefix("compilation failed: ")
    return ""


ACCEPTED = """
device.driver == "x"
device.allowMultipleAllocations
device.attributes["a"].b
device.attributes["a"].b == 1 && device.attributes.c.d.startsWith("x")
device.capacity["a"].b.compareTo(quantity("1Gi")) >= 0
device.capacity["a"].b == null
"a" in device.attributes
has(device.attributes.foo.bar)
device.attributes["a"].?x.orValue(false)
device.attributes[?"a"].?b.hasValue()
device.attributes.?a.b.c.orValue(1) == 1
device.attributes.exists(d, a, a.exists(i, v, v == 1))
device.attributes["a"].list.map(x, x.foo).all(y, y.bar)
device.attributes["a"].x.includes("a")
cel.bind(d, device.attributes["a"], d.x == 1)
1 == dyn(1.0)
1 < 2.0 && 1u < 2 && 1.0 <= 2u
[[]] == [[1]]
([] + [1]).exists(x, x == 1)
[3, 1].sortBy(x, -x) == [1, 3]
[1, 2].sort() == lists.range(2)
[[1]].flatten() == [1]
sets.contains([1], [2])
[1, 2].sum() == 3 && ["a"].max() == "a" && [1].indexOf(1) == 0
{"a": 1}.transformMap(k, v, "b") == {"a": "b"}
{"a": 1}.transformMapEntry(k, v, {v: k}) == {1: "a"}
optional.none().optMap(x, x + 1).hasValue()
[optional.of(1)].unwrapOpt() == [1]
"%d %s".format([1, "a"]) == ""
"%s".format([[1, "a"]]) == ""
ip.isCanonical("1.1.1.1") && ip("1.1.1.1").family() == 4
cidr("1.0.0.0/8").ip() == ip("1")
string(cidr("a")) == string(ip("a"))
url("a").getQuery()["b"][0] == "c"
format.dns1123Label().validate("a").hasValue()
semver("1.0", true).isGreaterThan(semver("1.0.0"))
sign(quantity("1")) == 1
duration("1h").getHours() == timestamp("2020-01-01T00:00:00Z").getHours("UTC")
timestamp(1) - duration("1h") == timestamp(1)
type(1) == int && type(ip("1")) == net.IP
google.protobuf.Timestamp == type(timestamp(1))
strings.quote("a").find("b") == ""
.device.driver == ""
""".strip().splitlines()


@pytest.mark.parametrize("expression", ACCEPTED)
def test_an_expression_that_kubernetes_accepts_is_accepted(expression: str) -> None:
    assert verdict(expression) == ""


@pytest.mark.parametrize(
    ("expression", "column", "sentence"),
    [
        ("device.foo == 1", 7, "undefined field 'foo'"),
        ("x", 1, "undeclared reference to 'x' (in container '')"),
        ("foo(1)", 4, "undeclared reference to 'foo' (in container '')"),
        ('"a".foo()', 8, "undeclared reference to 'foo' (in container '')"),
        ("math.e == 2", 1, "undeclared reference to 'math' (in container '')"),
        ('"a" + 1', 5, "found no matching overload for '_+_' applied to '(string, int)'"),
        ("1 == 1.0", 3, "found no matching overload for '_==_' applied to '(int, double)'"),
        ("null == 1", 6, "found no matching overload for '_==_' applied to '(null, int)'"),
        (
            'device.capacity["a"].b >= quantity("1")',
            24,
            "found no matching overload for '_>=_' applied to '(kubernetes.Quantity, kubernetes.Quantity)'",
        ),
        (
            'quantity("1").sign() == 1',
            19,
            "found no matching overload for 'sign' applied to 'kubernetes.Quantity.()'",
        ),
        ('"a".split(1)', 10, "found no matching overload for 'split' applied to 'string.(int)'"),
        ("[1] < [2]", 5, "found no matching overload for '_<_' applied to '(list(int), list(int))'"),
        ('[1, "a"] == []', 5, "expected type 'int' but found 'string'"),
        ("[1, dyn(2)] == []", 8, "expected type 'int' but found 'dyn'"),
        ('{"a": 1, "b": "c"} == {}', 15, "expected type 'int' but found 'string'"),
        ("[?1] == [1]", 3, "expected type 'optional_type(int)' but found 'int'"),
        ("1 && true", 1, "expected type 'bool' but found 'int'"),
        ("[1].all(x, x)", 12, "expected type 'bool' but found 'int'"),
        (
            '"a".exists(x, x)',
            1,
            "expression of type 'string' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        ("optional.of(1).foo.hasValue()", 15, "type 'int' does not support field selection"),
        ('duration("1x") == duration("1h")', 10, "invalid duration argument"),
        ('timestamp("x") == timestamp(1)', 11, "invalid timestamp argument"),
        ("timestamp(253402300800) == timestamp(1)", 11, "invalid timestamp argument"),
        ('device.driver.matches("[")', 23, "invalid matches argument"),
        ('"%d %s".format([1]) == ""', 15, "index 1 out of range"),
        (
            '"%d".format(["a"]) == ""',
            14,
            "error during formatting: decimal clause can only be used on integers, was given string",
        ),
        ('"%d".format([1, 2]) == ""', 12, "too many arguments supplied to string.format (expected 1, got 2)"),
        (
            '"%z".format([1]) == ""',
            12,
            'could not parse formatting clause: unrecognized formatting clause "z"',
        ),
    ],
)
def test_a_refusal_says_what_kubernetes_says_and_where(expression: str, column: int, sentence: str) -> None:
    expected = f"ERROR: <input>:1:{column}: {sentence}\n | {expression}\n | {'.' * (column - 1)}^"
    assert verdict(expression) == expected


def test_every_finding_is_reported_in_the_order_of_the_text() -> None:
    found = verdict('b && device.foo && "a" + 1 == a')
    assert [line.split(": ", 2)[1:] for line in found.splitlines() if line.startswith("ERROR")] == [
        ["<input>:1:1", "undeclared reference to 'b' (in container '')"],
        ["<input>:1:12", "undefined field 'foo'"],
        ["<input>:1:24", "found no matching overload for '_+_' applied to '(string, int)'"],
        ["<input>:1:31", "undeclared reference to 'a' (in container '')"],
    ]


@pytest.mark.parametrize(
    ("expression", "of"),
    [
        ("1", "int"),
        ("null", "null_type"),
        ("device.attributes", "map(string, map(string, dyn))"),
        ("device", "kubernetes.DRADevice"),
        ('duration("1h")', "google.protobuf.Duration"),
        ("optional.of(1)", "optional_type(int)"),
        ("[]", "list(dyn)"),
        ("int", "type(int)"),
    ],
)
def test_a_selector_must_be_bool_or_an_attribute(expression: str, of: str) -> None:
    assert verdict(expression) == f"must evaluate to bool or the unknown type, not {of}"


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ('"a".find("[") == ""', "error parsing regexp: missing closing ]: `[`"),
        ('matches(device.driver, "(")', "error parsing regexp: missing closing ): `(`"),
        ("cel.bind(t, type(1), t == int)", "reference to undefined type: t"),
        ("device.attributes['a'].b[null] == 1", "invalid qualifier type: types.Null"),
        ("type(device) == kubernetes.DRADevice", "reference to undefined type: kubernetes.DRADevice"),
    ],
)
def test_what_kubernetes_finds_out_last_is_refused_too(expression: str, sentence: str) -> None:
    assert verdict(expression) == f"program instantiation failed: {sentence}"


def test_a_new_expression_may_use_only_what_the_version_before_knew() -> None:
    sort, allow = "[2, 1].sort() == [1]", "device.allowMultipleAllocations"
    assert verdict(sort, new_expressions(35)) == ""
    assert "undeclared reference to 'sort'" in verdict(sort, new_expressions(34))
    assert "undefined field" in verdict(allow, new_expressions(35))
    assert verdict(allow, new_expressions(36)) == ""


def test_a_feature_gate_brings_its_part_of_the_language_at_once() -> None:
    loop = 'device.attributes["a"].b.all(x, x.includes(1))'
    assert verdict(loop, new_expressions(36, list_attributes=True)) == ""
    assert "cannot be range" in verdict(loop, new_expressions(35, list_attributes=True))


def test_attributes_are_ranges_only_where_lists_are_allowed() -> None:
    loop = 'device.attributes["a"].b.exists(x, x == 1)'
    assert verdict(loop, new_expressions(37, list_attributes=True)) == ""
    assert "expression of type 'any' cannot be range" in verdict(loop, new_expressions(37))
    assert "undeclared reference to 'includes'" in verdict("[1].includes(1)", new_expressions(37))
    assert verdict("[1].includes(1)", new_expressions(38)) == ""


def test_versions_without_stable_dra_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.34"):
        new_expressions(33)


@pytest.mark.parametrize(
    "expression",
    [
        "[1]" + "".join(".map(x, [[[[x]]]])" for _ in range(100)) + " == []",
        "[1]" + "".join(".map(x, {x: x})" for _ in range(100)) + " == []",
        "[" + "[]," * 3000 + "] == []",
        "[[]" + ",[]" * 200 + "].all(x, x == [] && " + " && ".join(["x == []"] * 300) + ")",
        "(" * 120 + "[1].exists(x, x == 1" + ")" * 120 + " || true)",
        "[1].exists(a, " * 100 + "true" + ")" * 100,
        "cel.bind(a, [1], " * 100 + "true" + ")" * 100,
        "!(" * 200 + "true" + ")" * 200,
        "{1: " * 200 + "1" + "}" * 200 + " == {}",
        "optional.of(" * 200 + "1" + ")" * 200 + ".hasValue()",
    ],
)
def test_hostile_expressions_are_judged_with_bounded_work(expression: str) -> None:
    with at_most(calls=5_000_000):
        verdict(expression)


_WORDS = [
    "device",
    "device.driver",
    "device.attributes",
    "device.capacity",
    "device.attributes['a'].b",
    "device.capacity['a'].b",
    "x",
    "1",
    "1u",
    "1.5",
    "'a'",
    "b'a'",
    "true",
    "null",
    "[]",
    "[1]",
    "{}",
    "{'a':1}",
    "optional.of(1)",
    "quantity('1')",
    "semver('1.0.0')",
    "ip('::1')",
    "duration('1s')",
    "timestamp(1)",
    "int",
]
_EXPRESSIONS = st.recursive(
    st.sampled_from(_WORDS),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "==", "!=", "<", ">=", "&&", "||", "in"]), inner).map(
            lambda t: f"({' '.join(t)})"
        ),
        st.tuples(
            st.sampled_from(["all", "exists", "map", "filter", "sortBy", "optMap", "existsOne"]), inner, inner
        ).map(lambda t: f"({t[1]}).{t[0]}(x, {t[2]})"),
        st.tuples(st.sampled_from(["size", "string", "type", "sign", "ip", "dyn", "foo"]), inner).map(
            lambda t: f"{t[0]}({t[1]})"
        ),
        st.tuples(
            inner, st.sampled_from(["size", "compareTo", "orValue", "includes", "max", "flatten", "a", "format"]), inner
        ).map(lambda t: f"({t[0]}).{t[1]}({t[2]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} ? {t[1]} : {t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"[{t[0]}, {t[1]}]"),
        st.tuples(inner, inner).map(lambda t: f"{{{t[0]}: {t[1]}}}"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]})[?{t[1]}]"),
        st.tuples(inner, inner).map(lambda t: f"cel.bind(x, {t[0]}, {t[1]})"),
        inner.map(lambda t: f"({t}).?a"),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(_EXPRESSIONS)
def test_any_expression_is_accepted_or_refused_and_nothing_else(expression: str) -> None:
    verdict(expression)
