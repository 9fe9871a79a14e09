"""cel-python as a third implementation of plain CEL: expressions without a device and without Kubernetes' extensions.

Owns which expressions those are, including random ones, and how cel-python is asked. Its known differences are listed in
`cel_python_differences`.
"""

import json
import random
import sys
from functools import cache
from pathlib import Path
from typing import Final

import celpy
import celpy.celparser
import celpy.celtypes
import celpy.evaluation

from draco.cel import CompileError, compile_selector
from draco.cel.checking.check import CheckedExpression, check
from draco.cel.syntax.ast import Call, Comprehension, Expr, Identifier, ListExpr, Literal, MapExpr, Select, walk
from draco.cel.syntax.parse import parse
from tests.differential.cel_cases import expand
from tests.differential.cel_oddities import ODD
from tests.differential.runs import KEPT

EVALUATIONS: Final = Path(__file__).parents[1] / "unit/cel/evaluations.jsonl"
_STANDARD: Final = frozenset(
    {
        "size", "type", "bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "uint",
        "contains", "endsWith", "startsWith", "matches", "getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate",
        "getDayOfWeek", "getHours", "getMinutes", "getSeconds", "getMilliseconds",
    }
)  # fmt: skip
"""Functions of the CEL specification."""
_MACROS: Final = frozenset({"all", "exists", "existsOne", "map", "filter"})
_RULES: Final = {
    "bool": [
        "true",
        "false",
        "$int < $int",
        "$string == $string",
        "$int in $ints",
        "$ints.exists(i, $ibool)",
        "$double <= $double",
        "$uint > $uint",
        "$string >= $string",
        "$int == $int",
        "$double != $double",
        "$ints == $ints",
        "$map == $map",
        "$duration > $duration",
        "$timestamp < $timestamp",
        "$bytes == $bytes",
        "$string in $strings",
        "$string in $map",
        "has($map.a)",
        '"tab,A100".contains($string)',
        "$string.startsWith($string)",
        "$string.endsWith($string)",
        '$string.matches("^[a-c]+$$")',
        "$ints.all(i, $ibool)",
        "$ints.exists_one(i, i == $int)",
        "$strings.exists(s, s.size() > $int)",
        "$map.all(s, s < $string)",
        "type($int) == int",
        "!$bool",
        "$bool && $bool",
        "$bool || $bool",
        "$bool == $bool",
        "$bool ? $bool : $bool",
    ],
    "ibool": ["i > 1", "i == 2", "i % 2 == 0", "i in [1, 2]", "10 / (i - 1) > 0", "i != i"],
    "int": ["0", "1", "-2", "3", "0x1F", "9223372036854775807", "$int + $int", "$int - $int", "$int * $int", "$int / $int",
            "$int % 3", "-($int)", "size($string)", "$ints.size()", "$map.size()", "$ints[0]", "$ints[1]", "$map.a", '$map["b"]',
            "$timestamp.getFullYear()", "$timestamp.getDayOfYear()", "$timestamp.getHours()",
            "$bool ? $int : $int"],
    "uint": ["0u", "1u", "7u", "0xFu", "2u", "18446744073709551615u", "$uint + $uint", "$uint - $uint", "$uint * $uint",
             "$uint / $uint", "$uint % 3u", "uint($int)"],
    "double": ["1.5", "0.0", "-2.0", "1e3", ".5", "2.0", "$double + $double", "$double - $double", "$double * $double",
               "-($double)", "double($int)"],
    "string": ['"a"', '"A100"', "''", '"a,b"', r'r"\d+"', r'"tab\t\u00e9\x41\101"', "$string + $string", "$strings[0]",
               "$strings[2]", "string($int)", "string($uint)", "$bool ? $string : $string"],
    "bytes": ['b"a"', "b''", r'b"\xff\000"', "b'é'", 'b"ab"', 'b"a"', "bytes($string)", "$bytes + $bytes"],
    "ints": ["[1, 2, 3]", "[3, 1, 2]", "[1]", "[2, 2]", "[0, 1]", "[-1, 5]", "[$int, $int]", "$ints + $ints",
             "$ints.map(i, i + 1)", "$ints.filter(i, $ibool)", "$strings.map(s, size(s))"],
    "strings": ['["a", "b"]', '["A100"]', '["b", "a", "a"]', '["", "x"]', '["a"]', '["é"]', "[$string, $string]",
                "$strings + $strings", '$strings.map(s, s + "x")', "$strings.filter(s, s in $strings)"],
    "map": ['{"a": 1, "b": 2}', "{}", '{"a": 1}', '{"x": 3, "a": 0}', '{"b": 2, "a": 1}', '{"m": 5}', '{"a": 7, "k": -3}'],
    "duration": ['duration("1h")', 'duration("1.5s")', 'duration("-3m")', 'duration("0s")', 'duration("1h1m1s1ms")',
                 'duration("10s")', "$duration + $duration", "$duration - $duration", "$timestamp - $timestamp"],
    "timestamp": ['timestamp("2024-02-29T12:34:56Z")', 'timestamp("1970-01-01T00:00:00Z")',
                  'timestamp("2026-03-01T00:00:00.123Z")', 'timestamp("2020-06-15T23:59:59+02:00")',
                  'timestamp("1969-07-20T20:17:40Z")', 'timestamp("2024-12-31T23:59:59Z")', "$timestamp + $duration",
                  "$timestamp - $duration"],
}  # fmt: skip
"""Random plain CEL, written as `cel_grammar` writes selectors, without what cel-python is known to do differently."""


def a_plain_expression(source: random.Random) -> str:
    """A random expression that all three should agree on."""
    return expand(source, "bool", source.choice([1, 2, 3, 4]), rules=_RULES)


def written_plain_expressions() -> list[str]:
    """All expressions written for other tests that are plain CEL."""
    written = [json.loads(line)["expression"] for line in EVALUATIONS.read_text(encoding="utf-8").splitlines()]
    kept = [json.loads(path.read_text(encoding="utf-8"))["expression"] for path in (KEPT / "cel").glob("*.json")]
    return sorted(filter(is_plain, {*ODD, *written, *kept}))


def is_plain(expression: str) -> bool:
    """Whether an expression compiles and uses only what the CEL specification defines."""
    try:
        compile_selector(expression)
    except CompileError:
        return False
    checked = check(parse(expression))
    return all(_is_standard(node, checked) for node in walk(checked.ast.root))


def _is_standard(node: Expr, checked: CheckedExpression) -> bool:
    match node:
        case Identifier():
            return node.name.removeprefix(".") != "device"
        case Comprehension():
            return node.macro in _MACROS and node.second_variable is None
        case ListExpr():
            return not node.optional
        case MapExpr():
            return not any(entry.is_optional for entry in node.entries)
        case Call():
            name = checked.functions.get(node, node.function.removeprefix("."))
            return name in _STANDARD or (not name[0].isalpha() and name not in {"_?._", "_[?_]"})
    return isinstance(node, Literal | Select)


def cel_python_says(expression: str) -> str:
    """`true`, `false` or `error`; `unreadable` for a syntax error; or the name of Python's error, or of the result's type."""
    try:
        result = _environment().program(_environment().compile(expression)).evaluate({})
    except celpy.celparser.CELParseError:
        return "unreadable"
    except celpy.evaluation.CELEvalError:
        return "error"
    except Exception as error:  # noqa: BLE001 - what a library raises by mistake is its answer
        return type(error).__name__
    return str(bool(result)).lower() if type(result) in {bool, celpy.celtypes.BoolType} else type(result).__name__


@cache
def _environment() -> celpy.Environment:
    limit = sys.getrecursionlimit()
    try:
        return celpy.Environment(runner_class=celpy.InterpretedRunner)  # CompiledRunner is wrong about has()
    finally:
        sys.setrecursionlimit(limit)  # cel-python raises it for the whole process
