"""Parsing selectors: the tree, literals, limits, and hostile text."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draco.cel.errors import CompileError
from draco.cel.syntax.ast import Call, Comprehension, Expr, Identifier, ListExpr, Literal, MapExpr, Select, walk
from draco.cel.syntax.parse import MAX_LENGTH, parse
from tests.doubles.work import at_most


def root(expression: str) -> Expr:
    return parse(expression).root


def refused(expression: str) -> str:
    with pytest.raises(CompileError) as caught:
        parse(expression)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1", "int", 1),
        ("-9223372036854775808", "int", -(2**63)),
        ("- 1", "int", -1),
        ("0xFf", "int", 255),
        ("18446744073709551615u", "uint", 2**64 - 1),
        ("0x10U", "uint", 16),
        ("1.5e3", "double", 1500.0),
        (".5", "double", 0.5),
        ("1e-2", "double", 0.01),
        ("true", "bool", True),
        ("null", "null_type", None),
        ('"a\\n\\x41\\u00e9\\U0001F600\\101\\?\\`"', "string", "a\nAé😀A?`"),
        ("r'\\d'", "string", "\\d"),
        ('R"""a"b\\"""', "string", 'a"b\\'),
        ("'''a\r\nb'c'''", "string", "a\nb'c"),
        ('""', "string", ""),
        ('""""""', "string", ""),
        ("b'\\xff\\377é'", "bytes", b"\xff\xff\xc3\xa9"),
        ("rb'a'", None, None),
        ("br'\\x'", "bytes", b"\\x"),
    ],
)
def test_literals_have_the_value_that_their_text_says(text: str, kind: str | None, value: object) -> None:
    if kind is None:
        assert "Syntax error" in refused(text)
        return
    node = root(text)
    assert isinstance(node, Literal)
    assert (node.kind, node.value, type(node.value)) == (kind, value, type(value))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("9223372036854775808", "invalid int literal"),
        ("9" * 5000, "invalid int literal"),
        ("18446744073709551616u", "invalid uint literal"),
        ("1e999", "invalid double literal"),
        ('"\\ud800"', "invalid unicode code point"),
        ("b'\\u0041'", "unable to unescape string"),
        ('"\\400"', "token recognition error"),
        ('"\\d"', "token recognition error"),
        ('"a\nb"', "token recognition error"),
    ],
)
def test_a_literal_that_is_none_is_refused(text: str, sentence: str) -> None:
    assert sentence in refused(text)


def test_operators_bind_as_in_the_language() -> None:
    node = root("a ? b : c || d && e == f + g * -h.i")
    assert isinstance(node, Call)
    functions = [part.function for part in walk(node) if isinstance(part, Call)]
    assert functions == ["_?_:_", "_||_", "_&&_", "_==_", "_+_", "_*_", "-_"]


def test_a_name_that_begins_like_an_operator_stays_a_name() -> None:
    node = root("inner in truest")
    assert isinstance(node, Call)
    assert node.function == "@in"
    assert [part.name for part in node.arguments if isinstance(part, Identifier)] == ["inner", "truest"]


def test_signs_of_one_kind_cancel_out_and_kinds_do_not_mix() -> None:
    assert isinstance(root("!!a"), Identifier)
    assert isinstance(root("!!!a"), Call)
    assert "Syntax error" in refused("!-a")


def test_optional_syntax_and_trailing_commas_are_understood() -> None:
    assert isinstance(root("[1, ?a, ]"), ListExpr)
    assert isinstance(root("{?a: b,}"), MapExpr)
    assert isinstance(root("[,]"), ListExpr)
    field, index = root("a.?b"), root("a[?b]")
    assert isinstance(field, Call)
    assert isinstance(index, Call)
    assert (field.function, index.function) == ("_?._", "_[?_]")


def test_a_field_in_back_quotes_keeps_its_characters() -> None:
    node = root("a.`b-c/d.e f`")
    assert isinstance(node, Select)
    assert node.field == "b-c/d.e f"


def test_every_node_knows_its_place() -> None:
    node = root("  foo.bar(1)")
    assert isinstance(node, Call)
    assert node.position == 9
    assert node.target is not None
    assert node.target.position == 2
    assert node.arguments[0].position == 10


def test_a_chain_of_conditions_is_balanced_so_that_it_stays_shallow() -> None:
    assert parse("a" + "||a" * 3000).depth < 20


@pytest.mark.parametrize(
    ("text", "macro"),
    [
        ("a.all(x, x)", "all"),
        ("a.exists(i, x, x)", "exists"),
        ("a.exists_one(x, x)", "existsOne"),
        ("a.map(x, x > 1, x)", "map"),
        ("a.filter(x, x)", "filter"),
        ("a.transformMap(k, v, v)", "transformMap"),
        ("cel.bind(a, 1, a)", "bind"),
        ("a.sortBy(x, x)", "bind"),
    ],
)
def test_macros_become_loops_that_know_what_was_written(text: str, macro: str) -> None:
    node = root(text)
    assert isinstance(node, Comprehension)
    assert node.macro == macro


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("has(a)", "ERROR: <input>:1:5: invalid argument to has() macro\n | has(a)\n | ....^"),
        ("x.map(1, 2)", "ERROR: <input>:1:7: argument is not an identifier\n | x.map(1, 2)\n | ......^"),
        ("x.all(1, 2)", "ERROR: <input>:1:7: argument must be a simple name\n | x.all(1, 2)\n | ......^"),
        ("x.all(a, a, 2)", "duplicate variable name: a"),
        ("x.all(__result__, 2)", "iteration variable overwrites accumulator variable"),
        ("cel.bind(1, 2, 3)", "cel.bind() variable names must be simple identifiers"),
        ("1.sortBy(x, x)", "sortBy can only be applied to a list"),
        ("for", "ERROR: <input>:1:1: reserved identifier: for\n | for\n | ^"),
        (
            "type.T{",
            "ERROR: <input>:1:7: message literals are not supported\n",
        ),
        ("[a{}]", "ERROR: <input>:1:3: message literals are not supported"),
        ("f(1){}", "ERROR: <input>:1:5: Syntax error: mismatched input '{' expecting <EOF>"),
        ("a b", "ERROR: <input>:1:3: Syntax error: mismatched input 'b' expecting <EOF>\n | a b\n | ..^"),
        ("(1", "ERROR: <input>:1:3: Syntax error: mismatched input '<EOF>' expecting ')'\n | (1\n | ..^"),
        ("1 +\n\t$", "ERROR: <input>:2:2: Syntax error: token recognition error at: '$'\n |  $\n | .^"),
        ("é$", "\n | é$\n | ＾"),  # noqa: RUF001 - Kubernetes marks wide characters so
        ("", "mismatched input '<EOF>'"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_place(text: str, sentence: str) -> None:
    assert sentence in refused(text)


def test_a_function_of_ones_own_named_like_a_macro_is_only_a_call() -> None:
    node = root("foo.bind(x, 1, x)")
    assert isinstance(node, Call)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 240 + "1" + ")" * 240,
        "[" * 240 + "]" * 240,
        "1" + "+1" * 240,
        "a" + ".b" * 240,
        "!" * 5000 + "a",
        "a" + "&&a" * 3000,
        "[" + "a," * 5000 + "]",
        "'" + "a" * 10000 + "'",
        "a?b:" * 240 + "c",
    ],
)
def test_long_and_deep_text_within_the_limits_is_read_quickly(text: str) -> None:
    with at_most(calls=5_000_000):
        parse(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("(" * 300 + "1" + ")" * 300, "expression recursion limit exceeded: 250"),
        ("1" + "+1" * 300, "max recursion depth exceeded"),
        ("a" + ".b" * 300, "max recursion depth exceeded"),
        ("a?b:" * 300 + "c", "expression recursion limit exceeded: 250"),
        ("a?b:c||d&&e==f+-g[" * 60 + "1" + "]" * 60, "nested too deeply"),
        ("a" + ".optMap(x,x)" * 100, "too large"),
        ("a" * (MAX_LENGTH + 1), "too long"),
        ("(" * 5000, "expression recursion limit exceeded: 250"),
        ("{" * 5000, "expression recursion limit exceeded: 250"),
        ("'''" * 3000, "Syntax error"),
    ],
)
def test_hostile_text_is_refused_with_bounded_work(text: str, sentence: str) -> None:
    with at_most(calls=1_000_000):
        said = refused(text)
    assert sentence in said


_PIECES = st.sampled_from(
    [
        "a",
        "b",
        "device",
        ".",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "?",
        "?.",
        "[?",
        "+",
        "-",
        "*",
        "/",
        "%",
        "!",
        "==",
        "!=",
        "<",
        "<=",
        "&&",
        "||",
        "in",
        "true",
        "null",
        "1",
        "1u",
        "1.5",
        "'x'",
        '"',
        "'''",
        "r'",
        'b"',
        "\\",
        "\\u",
        "\n",
        "//",
        "#",
        "é",
        "has(",
        ".map(x,",
        "cel.bind(",
        ".optMap(x,",
        "`a`",
        "@",
        "0x",
        "1e",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(_PIECES, max_size=40).map("".join), st.lists(_PIECES).map(" ".join)))
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    try:
        parse(text)
    except CompileError as error:
        assert str(error).startswith("compilation failed: ERROR: <input>:")  # noqa: PT017 - both outcomes are right


NESTING, DEPTH = "expression recursion limit exceeded: 250", "max recursion depth exceeded"


@pytest.mark.parametrize(
    ("piece", "most", "sentence"),
    [
        (lambda n: "(" * n + "1" + ")" * n, 249, NESTING),
        (lambda n: "[" * n + "]" * n, 250, NESTING),
        (lambda n: "2 * (" * n + "1" + ")" * n, 124, NESTING),
        (lambda n: "2 + (" * n + "1" + ")" * n, 124, NESTING),
        (lambda n: "-(" * n + "1" + ")" * n, 249, NESTING),
        (lambda n: "-" * n + "1", 10_000, None),
        (lambda n: "1" + "+1" * n, 250, DEPTH),
        (lambda n: "1" + "==1" * n, 250, DEPTH),
        (lambda n: "f(1)" + ".b" * n, 250, DEPTH),
        (lambda n: "f(1)" + "[0]" * n, 250, DEPTH),
    ],
)
def test_the_limit_of_nesting_is_where_kubernetes_has_it(
    piece: Callable[[int], str], most: int, sentence: str | None
) -> None:
    parse(piece(most))
    if sentence is not None:
        assert sentence in refused(piece(most + 1))
