"""Checks of literals beyond their type, which Kubernetes does after the type check, with its error texts.

Owns constant durations, timestamps and patterns, lists and maps of one type, and constant format strings with their arguments.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from draco.cel.checking.check import CheckedExpression, runtime_name
from draco.cel.errors import CompileError, EvaluationError, Issue, refusal
from draco.cel.functions.format import CLAUSES, INT64_DIGITS, too_precise
from draco.cel.functions.operators import FIRST_SECOND, LAST_SECOND
from draco.cel.functions.standard import parse_duration, parse_timestamp
from draco.cel.syntax.ast import Call, Expr, Identifier, ListExpr, Literal, MapExpr, Select, children, walk
from draco.cel.values import types
from draco.cel.values.regex import compile_pattern
from draco.cel.values.types import Type, is_equivalent, unwrapped
from draco.cel.values.values import MAX_INT

_CONSTANTS: Final[dict[str, Callable[[str], Any]]] = {
    "duration": parse_duration,
    "timestamp": parse_timestamp,
    "matches": compile_pattern,
}


def validate(checked: CheckedExpression) -> None:
    """Check all literals. Raises CompileError with every invalid one."""
    issues: list[Issue] = []
    waiting = [(checked.ast.root, False)]
    while waiting:
        node, is_exempt = waiting.pop()
        if isinstance(node, Call) and node.function == "format":
            is_exempt = True  # arguments of format may have any types
        waiting.extend((part, is_exempt) for part in children(node))
        match node:
            case Call():
                issues.extend(_constants(node))
                issues.extend(_format(node, checked))
            case ListExpr() if not is_exempt:
                kinds = [_held(checked.types[part], index in node.optional) for index, part in enumerate(node.elements)]
                issues.extend(_mixed(node.elements, kinds, stops=True))
            case MapExpr() if not is_exempt:
                keys = tuple(entry.key for entry in node.entries)
                values = tuple(entry.value for entry in node.entries)
                kinds = [_held(checked.types[entry.value], entry.is_optional) for entry in node.entries]
                issues.extend(_mixed(keys, [checked.types[key] for key in keys], stops=False))
                issues.extend(_mixed(values, kinds, stops=False))
    if issues:
        raise refusal(checked.ast.expression, issues)
    _check_program(checked)


_NO_KEYS: Final = {"null_type": "types.Null", "bytes": "types.Bytes"}


def _check_program(checked: CheckedExpression) -> None:
    """Raise the first error that Kubernetes finds only when it builds a program from the expression; it has no position."""
    for node in walk(checked.ast.root):
        if isinstance(node, Select) and checked.names.get(node) == types.DEVICE.name:
            raise CompileError(f"program instantiation failed: reference to undefined type: {types.DEVICE.name}")
        if isinstance(node, Identifier) and node in checked.locals and checked.types[node].kind == "type":
            raise CompileError(f"program instantiation failed: reference to undefined type: {node.name}")
        if isinstance(node, Call) and node.function in {"_[_]", "_[?_]"}:
            index = node.arguments[1]
            if isinstance(index, Literal) and (wrong := _NO_KEYS.get(index.kind)) is not None:
                raise CompileError(f"program instantiation failed: invalid qualifier type: {wrong}")
        if not isinstance(node, Call) or node.function not in {"matches", "find", "findAll"} or not node.arguments:
            continue
        pattern = node.arguments[0 if node.target is not None else -1]
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            try:
                compile_pattern(pattern.value)
            except EvaluationError as problem:
                raise CompileError(f"program instantiation failed: {problem}") from None


def _constants(node: Call) -> Iterator[Issue]:
    read = _CONSTANTS.get(node.function)
    first = node.arguments[0] if node.arguments else None
    if read is None or not isinstance(first, Literal):
        return
    if first.kind == "null_type":
        yield Issue(first.position, f"invalid {node.function} argument")
        return
    if node.function == "timestamp" and first.kind == "int" and isinstance(first.value, int):
        if not FIRST_SECOND <= first.value <= LAST_SECOND:
            yield Issue(first.position, "invalid timestamp argument")
        return
    if not isinstance(first.value, str):
        return
    try:
        read(first.value)
    except EvaluationError:
        yield Issue(first.position, f"invalid {node.function} argument")


def _held(of: Type, is_optional: bool) -> Type:
    return unwrapped(of)[0] if is_optional else of


def _mixed(parts: tuple[Expr, ...], kinds: list[Type], *, stops: bool) -> Iterator[Issue]:
    for part, kind in zip(parts, kinds, strict=True):
        if not is_equivalent(kinds[0], kind):
            yield Issue(part.position, f"expected type '{kinds[0]}' but found '{kind}'")
            if stops:
                return


_UNPARSED: Final = "could not parse formatting clause"
_CLAUSE: Final = re.compile(r"%(?:(?P<percent>%)|(?:\.(?P<precision>[0-9]*))?(?P<letter>.?))", re.DOTALL)


def _format(node: Call, checked: CheckedExpression) -> Iterator[Issue]:
    if node.function != "format" or "string_format" not in checked.overloads.get(node, ()):
        return
    text, given = node.target, node.arguments[0]
    if not isinstance(text, Literal) or not isinstance(text.value, str) or not isinstance(given, ListExpr):
        return
    used = 0
    for clause in _CLAUSE.finditer(text.value):
        if clause["percent"]:
            continue
        if used >= len(given.elements):
            yield Issue(node.position, f"index {used} out of range")
            return
        letter = clause["letter"]
        digits = clause["precision"] or ""
        if len(digits.lstrip("0")) > INT64_DIGITS or int(digits or 0) > MAX_INT:
            yield Issue(node.position, f"{_UNPARSED}: error while parsing precision: {too_precise(digits)}")
            return
        known = CLAUSES.get(letter)
        if known is None:
            if clause.end() == len(text.value) and clause[0] == "%":
                sentence = "unexpected end of string"
            elif not letter:
                sentence = f"{_UNPARSED}: error while parsing precision: could not find end of precision specifier"
            else:
                sentence = f'{_UNPARSED}: unrecognized formatting clause "{letter}"'
            yield Issue(node.position, sentence)
            return
        part = given.elements[used]
        wrong = _unfit(part, known.kinds, checked, deep=letter == "s")
        if wrong is not None:
            was = _name(checked.types[wrong])
            yield Issue(wrong.position, f"error during formatting: {known.complaint}, was given {was}")
            return
        used += 1
    if len(given.elements) > used:
        sentence = f"too many arguments supplied to string.format (expected {used}, got {len(given.elements)})"
        yield Issue(node.position, sentence)


def _name(of: Type) -> str:
    return runtime_name(Type("", of.name))


def _unfit(node: Expr, kinds: frozenset[str], checked: CheckedExpression, *, deep: bool) -> Expr | None:
    """The part that a clause cannot print, also inside lists and maps if the clause prints those."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        of = checked.types[part]
        if of.kind != "dyn" and _name(of) not in kinds:
            return part
        if deep and isinstance(part, ListExpr):
            waiting.extend(reversed(part.elements))
        elif deep and isinstance(part, MapExpr):
            waiting.extend(inner for entry in reversed(part.entries) for inner in (entry.value, entry.key))
    return None
