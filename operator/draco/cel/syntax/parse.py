"""Parser: from the text of an expression to its tree.

Owns the limits against hostile text (length, nesting, size after macros) and the syntax errors; the grammar is in `cel.lark`. No
step recurses over the tree, so no text can overflow the stack.
"""

from functools import cache, lru_cache
from typing import Any, Final, TypeAlias, cast

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from draco.cel.errors import CompileError, Issue, refusal
from draco.cel.syntax import literals, macros, tables
from draco.cel.syntax.ast import Ast, Call, Expr, Identifier, ListExpr, Literal, LiteralKind, MapEntry, MapExpr, Select
from draco.cel.syntax.measure import depth, nesting, size, visits

MAX_LENGTH: Final = 10 * 1024
"""Bytes of UTF-8 in an expression, as in Kubernetes' API."""
MAX_NESTING: Final = 250
"""Nesting of one grammar rule, as in Kubernetes."""
MAX_DEPTH: Final = 400
"""Levels of the tree. Kubernetes counts differently; only text that nests in several ways at once reaches this."""
MAX_SIZE: Final = 50_000
"""Nodes after macros. Kubernetes has no such limit; optMap doubles its target, so a chain of them grows exponentially."""

_RESERVED: Final = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
_TOO_NESTED: Final = f"expression recursion limit exceeded: {MAX_NESTING}"
_UNARY: Final = {"!": "!_", "-": "-_"}
_CLOSING: Final = {"RPAR": ")", "RSQB": "]", "RBRACE": "}", "COLON": ":"}
_OPERANDS: Final = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)
_LONGEST_QUOTED: Final = 40
REMEMBERED: Final = 16
"""Size of the cache of recent expressions: explaining a claim asks for the same few several times."""
_Parts: TypeAlias = list[Any]
"""lark's input to a rule: tokens, results of the rules below, None for what is absent."""


@lru_cache(maxsize=REMEMBERED)
def parse(expression: str) -> Ast:
    """Parse an expression; raises CompileError with Kubernetes' text."""
    if len(expression.encode("utf-8", "surrogatepass")) > MAX_LENGTH:
        raise CompileError(f"expression is too long: may not be longer than {MAX_LENGTH} bytes")
    try:
        root: Expr = _parser().parse(expression)  # type: ignore[assignment] # lark knows only trees
        if len(expression) > MAX_NESTING and nesting(_parser().lex(expression)) > MAX_NESTING:
            raise refusal(expression, [Issue(None, _TOO_NESTED)])
    except _Refused as problem:
        raise refusal(expression, [problem.issue]) from None
    except UnexpectedInput as problem:
        if _opened(expression, problem) > MAX_NESTING:
            raise refusal(expression, [Issue(None, _TOO_NESTED)]) from None
        raise refusal(expression, [_syntax_error(expression, problem)]) from None
    if size(root, most=MAX_SIZE) > MAX_SIZE:
        raise refusal(expression, [Issue(None, f"expression is too large: more than {MAX_SIZE} nodes after macros")])
    if len(expression) > MAX_NESTING and visits(root) > MAX_NESTING:
        raise refusal(expression, [Issue(None, "max recursion depth exceeded")])
    levels = depth(root)
    if levels > MAX_DEPTH:
        raise refusal(expression, [Issue(None, f"expression is nested too deeply: more than {MAX_DEPTH} levels")])
    return Ast(expression, root, levels)


def _opened(expression: str, problem: UnexpectedInput) -> int:
    """The most rules open at the same time before the position of a syntax error: Kubernetes' parser gives up there already."""
    end = problem.pos_in_stream if isinstance(problem, UnexpectedCharacters) else None
    if isinstance(problem, UnexpectedToken) and problem.token.type != "$END":
        end = _at(problem.token)
    before = expression if end is None else expression[:end]
    return nesting(_parser().lex(before)) if len(before) > MAX_NESTING else 0


@cache
def _parser() -> Lark:
    """The parser, made once. Stateless, so threads can share it."""
    return tables.parser(_Builder())


class _Refused(Exception):
    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.issue = Issue(position, message)


def _at(token: Token) -> int:
    return token.start_pos or 0


def _name(token: Token) -> str:
    return token[1:-1] if token.type == "ESC_IDENT" else str(token)


def _operator(token: Token) -> str:
    return "@in" if token.type == "IN" else f"_{token}_"


def _call(token: Token, function: str, target: Expr | None, arguments: tuple[Expr, ...]) -> Expr:
    try:
        expanded = macros.expand(_at(token), function, target, arguments)
    except macros.MacroError as problem:
        raise _Refused(problem.position, str(problem)) from None
    return Call(_at(token), function, target, arguments) if expanded is None else expanded


def _balanced(terms: list[Expr], operators: list[Token], low: int, high: int) -> Expr:
    """A chain of `&&` or `||` as the shallowest tree, as in Kubernetes; keeps the order of the terms."""
    middle = (low + high + 1) // 2
    left = terms[middle] if middle == low else _balanced(terms, operators, low, middle - 1)
    right = terms[middle + 1] if middle == high else _balanced(terms, operators, middle + 1, high)
    operator = operators[middle]
    return Call(_at(operator), _operator(operator), None, (left, right))


class _Builder:
    """The parser calls the method named after each rule it has read. Stateless."""

    def conditional(self, parts: _Parts) -> Expr:
        test, question, then, otherwise = parts
        return Call(_at(question), "_?_:_", None, (test, then, otherwise))

    def logical(self, parts: _Parts) -> Expr:
        terms, operators = parts[::2], parts[1::2]
        return _balanced(terms, operators, 0, len(operators) - 1)

    def comparison(self, parts: _Parts) -> Expr:
        left, operator, right = parts
        return Call(_at(operator), _operator(operator), None, (left, right))

    arithmetic = comparison

    def exprlist(self, parts: _Parts) -> _Parts:
        return parts

    unary_not = unary_neg = listinit = exprlist

    def negation(self, parts: _Parts) -> Expr:
        signs, operand = parts
        if len(signs) % 2 == 0:  # an even number cancels out, in Kubernetes' parser too
            return cast("Expr", operand)
        return Call(_at(signs[0]), _UNARY[signs[0]], None, (operand,))

    def member_dot(self, parts: _Parts) -> Expr:
        operand, dot, name = parts
        return Select(_at(dot), operand, _name(name))

    def member_dot_optional(self, parts: _Parts) -> Expr:
        operand, dot, _, name = parts
        return Call(_at(dot), "_?._", None, (operand, Literal(_at(name), "string", _name(name))))

    def member_dot_arg(self, parts: _Parts) -> Expr:
        target, _, name, opening, arguments = parts
        return _call(opening, str(name), target, tuple(arguments or ()))

    def member_index(self, parts: _Parts) -> Expr:
        operand, opening, *question, index = parts
        return Call(_at(opening), "_[?_]" if question else "_[_]", None, (operand, index))

    member_index_optional = member_index

    def ident_arg(self, parts: _Parts) -> Expr:
        *dot, name, opening, arguments = parts
        _check_reserved(name, _at(parts[0]))
        return _call(opening, "".join([*dot, name]), None, tuple(arguments or ()))

    dot_ident_arg = ident_arg

    def ident(self, parts: _Parts) -> Expr:
        _check_reserved(parts[-1], _at(parts[0]))
        return Identifier(_at(parts[-1]), "".join(parts))

    dot_ident = ident

    def mapinit(self, parts: _Parts) -> MapEntry:
        question, key, colon, value = parts
        return MapEntry(_at(colon), key, value, question is not None)

    def list_lit(self, parts: _Parts) -> Expr:
        opening, *elements = parts
        optional = frozenset(index for index, (question, _) in enumerate(elements) if question is not None)
        return ListExpr(_at(opening), tuple(element for _, element in elements), optional)

    def map_lit(self, parts: _Parts) -> Expr:
        opening, *entries = parts
        return MapExpr(_at(opening), tuple(entries))

    def literal(self, parts: _Parts) -> Expr:
        sign, token = parts if len(parts) == 2 else (None, parts[0])
        position = _at(token if sign is None else sign)
        try:
            kind, value = _value(token, negative=sign is not None)
        except literals.LiteralError as problem:
            raise _Refused(position, str(problem)) from None
        return Literal(position, kind, value)


def _check_reserved(name: Token, position: int) -> None:
    if name in _RESERVED:
        raise _Refused(position, f"reserved identifier: {name}")


def _value(token: Token, *, negative: bool) -> tuple[LiteralKind, bool | int | float | str | bytes | None]:  # noqa: PLR0911 - one per case
    match token.type:
        case "INT_LIT":
            return "int", literals.read_int(token, negative=negative)
        case "UINT_LIT":
            return "uint", literals.read_uint(token[:-1])
        case "FLOAT_LIT":
            return "double", literals.read_double(token, negative=negative)
        case "STRING_LIT":
            return "string", literals.read_string(token)
        case "BYTES_LIT":
            return "bytes", literals.read_bytes(token)
        case "NULL_LIT":
            return "null_type", None
        case _:
            return "bool", token.type == "TRUE_LIT"


def _syntax_error(expression: str, problem: UnexpectedInput) -> Issue:
    """One error in the words of Kubernetes' parser, which may report more for the same position."""
    if not isinstance(problem, UnexpectedToken):
        position = problem.pos_in_stream if isinstance(problem, UnexpectedCharacters) else len(expression)
        return Issue(position, f"Syntax error: token recognition error at: '{_unreadable(expression, position or 0)}'")
    at_end = problem.token.type == "$END"
    found = "<EOF>" if at_end else str(problem.token)
    if len(found) > _LONGEST_QUOTED:
        found = found[:_LONGEST_QUOTED] + "…"
    position = len(expression) if at_end else _at(problem.token)
    expected = problem.accepts or problem.expected
    if problem.token.type == "LBRACE" and "LPAR" in expected:  # after a name: the grammar has no messages
        return Issue(position, "message literals are not supported")
    before = expression[:position].rstrip()[-1:]
    if before in {"-", "!"} or (before == "." and "IDENT" in expected):
        return Issue(position, f"Syntax error: no viable alternative at input '{before}{'' if at_end else found}'")
    if "LPAR" in expected and "INT_LIT" in expected:
        wanted = _OPERANDS
    elif expected == {"IDENT"}:
        wanted = "IDENTIFIER"
    else:
        wanted = next((f"'{sign}'" for name, sign in _CLOSING.items() if name in expected), "<EOF>")
    return Issue(position, f"Syntax error: mismatched input '{found}' expecting {wanted}")


def _unreadable(expression: str, position: int) -> str:
    """What the scanner cannot read: one character, or an unclosed string."""
    if expression[position] not in "\"'":
        return expression[position]
    return expression[position:].split("\n", 1)[0][:_LONGEST_QUOTED]
