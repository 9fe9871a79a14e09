"""The tokens of an expression are those of the language; invalid text has tokens, too."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from draco.cel.errors import CompileError
from draco.cel.syntax.parse import _parser, parse
from draco.selectors.tokens import quoted, tokens

EXPRESSIONS = [
    'device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches(r"h\\d+")',
    "1.5e-3 < .5 && 2E10 > 1 - -1 && 0x1Fu != 3u && 1.double() == 1.0",
    "a.?b[?c].orValue('it''s') // a comment with \"quotes\" && (\n || !x",
    '"""three " quotes""" == \'\'\'and \\\' more\'\'\' ? b"bytes" : br"raw\\"',
    "x in [1, 2] && {?a: b, 'c': 1}.exists(k, k != `in`) && a.`b-c/d.e` % 2 == 1",
    r'"\"" + r"\" + "a\\"',
]
PIECES = [
    "device", ".", "?", "[", "]", "(", ")", "{", "}", ",", ":", '"a"', "'b'", 'r"\\"', 'b"c"', '"""d"""', "1", "2.5", ".5", "1e3",
    "1.5E-3", "0xfu", "-", "!", "+", "*", "/", "%", "&&", "||", "==", "!=", "<=", ">", "in", "true", "a", "`b-c`", "// no\n", " ",
    "\n",
]  # fmt: skip


def surface(expression: str) -> list[tuple[str, int, int]]:
    return [(token.text, token.start, token.end) for token in tokens(expression)]


def by_the_language(expression: str) -> list[tuple[str, int, int]]:
    return [(str(token), token.start_pos or 0, token.end_pos or 0) for token in _parser().lex(expression)]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_has_the_tokens_of_the_language(expression: str) -> None:
    assert surface(expression) == by_the_language(expression)


@settings(database=None, deadline=None)
@given(some.lists(some.sampled_from(PIECES), max_size=12).map("".join))
def test_whatever_parses_has_the_tokens_of_the_language(expression: str) -> None:
    try:
        parse(expression)
    except CompileError:
        return
    assert surface(expression) == by_the_language(expression)


@settings(database=None, deadline=None)
@given(some.text(max_size=40))
def test_every_text_has_tokens_which_are_all_of_it_but_spaces_and_comments(text: str) -> None:
    end = 0
    for token in tokens(text):
        assert text[token.start : token.end] == token.text
        between = text[end : token.start].strip()
        assert not between or between.startswith("//")
        end = token.end


def test_what_a_string_says_is_read_as_the_language_does() -> None:
    said = [quoted(token) for token in tokens(r'''"a\"b" r"\d" """c""" b"d" "\q" x''')]
    assert said == ['a"b', r"\d", "c", None, None, None]
