import json

import lark
import pytest
from lark import Lark
from lark.exceptions import UnexpectedInput, UnexpectedToken

from draco.cel.syntax import tables
from scripts import generate_grammar

EXPRESSIONS = [
    "true",
    "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type in ['gpu', \"mig\"]",
    "a.?b.orValue(1u) >= -2.5e3 || !(c ? d : e[?0]) // why",
    'r"\\d" + b"\\x00" + """x""" == f(.g(h), [?i, j], {k: l, ?m: n}) ? Type.`b-c` != null : 0x1F % 2 - inner',
    "",
    "a +",
    "a b",
    "(1",
    "[1, 2",
    "a..b",
    "{a: }",
    "1 ==== 2",
    "'open",
    "a ? b",
    "#",
    "x in y in",
]


class Named:
    """Returns what was parsed, with the rule's name."""

    def __getattr__(self, rule: str) -> object:
        if not rule[0].islower():
            raise AttributeError(rule)
        return lambda parts: (rule, parts)


def told(parser: Lark, expression: str) -> object:
    try:
        return parser.parse(expression)
    except UnexpectedToken as problem:
        return problem.token, problem.pos_in_stream, problem.expected, problem.accepts
    except UnexpectedInput as problem:
        return type(problem), problem.pos_in_stream


def test_the_tables_were_made_of_this_grammar_by_the_locked_lark() -> None:
    found = json.loads(tables.content(tables.TABLES))
    assert (found["grammar"], found["lark"]) == (generate_grammar.digest(), lark.__version__), "run 'make grammar'"


def test_tables_that_are_read_tell_as_much_as_the_grammar() -> None:
    kept, made = tables.parser(Named()), tables.from_grammar(Named())
    assert kept.source_path == "<deserialized>"
    for expression in EXPRESSIONS:
        assert told(kept, expression) == told(made, expression)
        if "#" not in expression and "'open" not in expression:
            assert list(kept.lex(expression)) == list(made.lex(expression))


def test_another_release_of_lark_reads_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lark, "__version__", "99.0")
    parser = tables.parser(Named())
    assert parser.source_path != "<deserialized>"
    assert parser.parse("a") == ("ident", ["a"])


def test_what_is_written_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {tables.TABLES: generate_grammar.written().encode()}
    monkeypatch.setattr(tables, "content", files.__getitem__)
    parser = tables.parser(Named())
    assert parser.source_path == "<deserialized>"
    assert parser.parse("a") == ("ident", ["a"])
