"""Selectors written to do harm: long, deep, slow, or with huge numbers.

Owns the list, and random towers of brackets.
"""

import random
import re
from collections.abc import Iterator
from itertools import pairwise

from tests.differential.cel_situations import DRIVER, HERE
from tests.differential.selector_answers import Json

DEVICE: Json = {
    "driver": DRIVER,
    "attributes": {"text": {"string": "a" * 64}, "many": {"strings": [f"{n:064}" for n in range(48)]}, "n": {"int": 7}},
    "capacity": {"memory": {"value": "10Gi"}},
}
_LONGEST = 10 * 1024
_LEAST, _MOST = "-9223372036854775808", "9223372036854775807"
_TEN = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"

_SHAPES = {
    "parentheses": ("(", "true", ")"),
    "lists": ("[", "1", "]"),
    "maps": ("{1: ", "1", "}"),
    "not": ("!", "true", ""),
    "minus": ("-", "1", ""),
    "not of brackets": ("!(", "true", ")"),
    "minus of brackets": ("-(", "1", ")"),
    "conditionals to the right": ("true ? true : ", "false", ""),
    "conditionals in brackets": ("(true ? ", "true", " : false)"),
    "sums to the left": ("", "1", " + 1"),
    "products in brackets": ("2 * (", "1", ")"),
    "indexes": ("[", "1", "][0]"),
    "calls": ("size(string(", "1", "))"),
    "fields": ("", "device", ".a"),
    "loops": ("[1].all(x, ", "true", ")"),
    "names bound": ("cel.bind(x, true, ", "x", ")"),
    "flattened": ("[", "[1]", "].flatten()"),
    "and": ("true && (", "true", ")"),
    "relations": ("(", "1 == 1", ") == true"),
}
_DEPTHS = (10, 60, 124, 126, 249, 250, 251, 600)


_TOO_DEEP = "nested too deeply: more than 400 levels"
_LARGE_TYPE = "a type that is too large: more than 100 levels"
_LONG_TEXT = "a text of more than 5000000 characters"
_LONG_LIST = "a list of more than 1000000 elements"
_TOO_COSTLY = "actual cost limit exceeded"
_TOIL = "goes through more than 20000000 characters and elements"
BOUNDED = {
    **{f"lists {depth} deep": _LARGE_TYPE for depth in (124, 126, 249)},
    **{f"maps {depth} deep": _LARGE_TYPE for depth in (124, 126, 249)},
    **{f"indexes {depth} deep": _TOO_DEEP for depth in (249,)},
    **{f"loops {depth} deep": _TOO_DEEP for depth in (249,)},
    "a list formatted deep": _LARGE_TYPE,
    "texts replaced": _LONG_TEXT,
    "texts formatted": _LONG_TEXT,
    "lists added, each time twice as long": _LONG_LIST,
    "lists flattened, each time twice as long": _LONG_LIST,
    "lists in lists, compared": "'match': True",
    "maps in maps, compared": "'match': True",
    "lists in lists, compared through optionals": "'match': True",
    "lists in lists, found": "'match': True",
    "lists in lists, formatted": _LONG_TEXT,
    "lists in lists, searched": _LONG_LIST,
    "lists in lists, in a message": "an error message of more than 100000 characters",
    "a long list made distinct": _TOO_COSTLY,
    "long lists as sets": _TOO_COSTLY,
    "long lists as equal sets": _TOO_COSTLY,
    "a long list added again and again": _TOIL,
    "a long list made again and again": _TOO_COSTLY,
    "a long list flattened again and again": _TOIL,
    "optionals unwrapped again and again": _TOIL,
    "long numbers formatted again and again": _TOIL,
    "patterns computed again and again": _TOIL,
    "parts found by computed patterns": _TOIL,
    "long URLs read again and again": _TOIL,
    "long maps compared again and again": _TOIL,
    "errors absorbed again and again": "'match': True",
}
"""Cases that Kubernetes is not asked about, and what Draco's answer contains: mostly a refusal by a limit of its own.

Kubernetes takes many seconds for most of them and runs out of memory on some; some of the deep ones it answers.
"""


def hostile() -> Iterator[tuple[str, Json]]:
    """All hostile cases, each with its name."""
    for name, (before, inside, behind) in _SHAPES.items():
        for depth in _DEPTHS:
            expression = before * depth + inside + behind * depth
            if len(expression) <= _LONGEST:
                yield f"{name} {depth} deep", _case(expression)
    yield from ((name, _case(expression)) for name, expression in _ODD.items())


def leaf_of(source: random.Random) -> Json:
    """An expression of random depth that nests random shapes."""
    expression, depth = "true", source.choice([5, 20, 60, 120, 240, 260])
    for _ in range(depth):
        before, _, behind = source.choice(list(_SHAPES.values()))
        expression = before + expression + behind
    return _case(expression[:_LONGEST])


def _case(expression: str) -> Json:
    return {"expression": expression, "device": DEVICE}


def _doubling(times: int, operation: str) -> str:
    expression = "x0.size() > 0"
    for number in range(times):
        expression = f"cel.bind(x{number}, {operation.replace('y', f'x{number + 1}')}, {expression})"
    return f'cel.bind(x{times}, "0123456789", {expression})'


_Y = re.compile(r"\by\b")


def _built(times: int, operation: str, first: str, asked: str) -> str:
    """Nested bindings, each of which applies the operation to the one before."""
    names = [f"{letter}{digit}" for digit in "1234" for letter in "abcdefgh"][: times + 1]
    expression = f"cel.bind({names[0]}, {first}, "
    for before, name in pairwise(names):
        expression += f"cel.bind({name},{re.sub(_Y, before, operation)},"
    return expression + re.sub(_Y, names[-1], asked) + ")" * len(names)


def _loops(levels: int, body: str) -> str:
    for name in "abcdefgh"[:levels]:
        body = f"{_TEN}.all({name}, {body})"
    return body


def _long(asked: str) -> str:
    return f"cel.bind(a, lists.range(90000), {asked})"


_ODD = {
    "10 KiB exactly": "true" + " || true" * ((_LONGEST - 4) // 8) + " " * ((_LONGEST - 4) % 8),
    "10 KiB of one text": f'"{"a" * (_LONGEST - 11)}" == ""',
    "10 KiB of one list": f"1 in [{'1,' * 5000}]",
    "10 KiB of mistakes": "1 + 'a' || " * 900 + "true",
    "10 KiB of unknown names": "a||" * 3000 + "a",
    "10 KiB of blanks": " " * _LONGEST,
    "10 KiB of operators": "+" * _LONGEST,
    "10 KiB of quotes": '"' * _LONGEST,
    "10 KiB of brackets": "(" * _LONGEST,
    "10 KiB of digits": "1" * _LONGEST,
    "10 KiB of one name": "a" * _LONGEST,
    "10 KiB of comment": "true //" + "x" * (_LONGEST - 7),
    "ten million steps": _loops(7, "true"),
    "ten million steps that fail": _loops(7, f"{HERE}.nothing == a"),
    "ten million steps in two variables": "lists.range(3200).all(a, b, lists.range(3200).all(c, d, a == b))",
    "a list built long": "lists.range(1000000).map(x, x).size() == 1000000",
    "a longer list": "lists.range(1000001).size() > 0",
    "the longest list": f"lists.range({_MOST}).size() > 0",
    "a list of less than nothing": f"lists.range({_LEAST}).size() > 0",
    "a list sorted": "lists.range(3000).sort()[0] == 0",
    "a list made distinct": "lists.range(3000).distinct().size() == 3000",
    "lists multiplied": "lists.range(100).map(x, lists.range(100)).flatten().size() == 10000",
    "a list flattened deep": f"[[1]].flatten({_MOST}) == [1]",
    "texts doubled": _doubling(40, "y + y"),
    "texts replaced": _doubling(12, 'y.replace("", y)'),
    "texts joined": _doubling(20, "[y, y, y, y].join(y)"),
    "texts formatted": _doubling(20, "'%s%s%s'.format([y, y, y])"),
    "texts split and joined": _doubling(20, 'y.split("").join(y)'),
    "texts quoted": _doubling(30, "strings.quote(y) + y"),
    "texts doubled in short text": _built(31, "y+y", '"0123456789"', "y.size() > 0"),
    "bytes doubled in short text": _built(31, "y+y", 'b"0123456789"', "y.size() > 0"),
    "lists added, each time twice as long": _built(31, "y+y", "[1]", "y.size() > 0"),
    "lists flattened, each time twice as long": _built(31, "[y,y].flatten()", "[1]", "y.size() > 0"),
    "lists in lists, compared": _built(31, "[y,y]", "[1]", "y == y"),
    "maps in maps, compared": _built(31, "{1:y,2:y}", "{1:1}", "y == y"),
    "lists in lists, compared through optionals": _built(
        31, "[optional.of(y),optional.of(y)]", "[optional.of(1)]", "y == y"
    ),
    "lists in lists, found": _built(31, "[y,y]", "[1]", "y in [y]"),
    "lists in lists, formatted": _built(31, "[y,y]", "[1]", '"%s".format([y]) == ""'),
    "lists in lists, searched": _built(31, "[y,y]", "[1]", "y.includes([1])"),
    "lists in lists, in a message": _built(31, "[y,y]", "[1]", "[dyn('a'), dyn(y)].join() == ''"),
    "a long list made distinct": "lists.range(90000).distinct().size() > 0",
    "long lists as sets": "sets.contains(lists.range(90000), lists.range(90000).reverse())",
    "long lists as equal sets": "sets.equivalent(lists.range(90000), lists.range(90000).reverse())",
    "a long list compared again and again": _long("a.all(x, a == a)"),
    "a long list added again and again": _long("a.all(x, (a + a).size() > 0)"),
    "a long list flattened again and again": _long("a.all(x, [a].flatten().size() > 0)"),
    "a long list sorted again and again": _long("a.all(x, a.sort()[0] == 0)"),
    "a long list searched again and again": _long("a.all(x, !(-x - 1 in a))"),
    "a long list made again and again": _long("a.all(x, a.map(y, y).size() > 0)"),
    "optionals unwrapped again and again": "cel.bind(a, lists.range(30000).map(x, optional.of(x)), "
    "a.all(x, a.unwrapOpt().size() > 0))",
    "long numbers formatted again and again": "lists.range(90000).all(x, '%.9999f'.format([1.0]).size() > 0)",
    "patterns computed again and again": "lists.range(20000).all(x, !'b'.matches('(a{1,500}){1,2}' + string(x)))",
    "parts found by computed patterns": "lists.range(20000).all(x, 'b'.find('(a{1,500}){1,2}' + string(x)) == '')",
    "long URLs read again and again": f"lists.range(8000).all(x, isURL('https://h/{'%41' * 1000}'))",
    "long maps compared again and again": "cel.bind(a, lists.range(30000).transformMap(i, v, v), "
    "lists.range(300).all(x, a == a))",
    "errors absorbed again and again": "cel.bind(a, lists.range(10), lists.range(20000).exists(x, a[x + 20] == 1) || true)",
    **{
        f"a precision of {precision} in {clause} of {number}": f'{{"a": 1}}["%.{precision}{clause}".format([{number}])] == 1'
        for precision in (255, 256, 300, 400, 32767, 32768, 65535, 65536, 65538, 1000001, 10000009, 10000010)
        for clause, number in (("f", 0.1), ("f", -123456.789), ("f", 1e20), ("e", 1.5))
    },
    "a pattern that backtracks": f'{HERE}.text.matches("^(a*)*(a*)*(a|a)*b$")',
    "a pattern of many repeats": f'{HERE}.text.matches("(a{{1,500}}){{1,2}}b")',
    "a pattern of too many repeats": f'{HERE}.text.matches("((a{{100}}){{100}}){{100}}")',
    "a repeat too large": f'{HERE}.text.matches("a{{1001}}")',
    "a pattern nested deep": f'{HERE}.text.matches("{"(" * 900}a{")" * 900}")',
    "a pattern nested too deep": f'{HERE}.text.matches("{"(" * 1001}a{")" * 1001}")',
    "a pattern computed each time": f'{HERE}.many.exists(x, x.matches("^(0|00)+b" + x))',
    "many patterns": " || ".join(f'{HERE}.text.matches("(a+)+{number}$")' for number in range(150)),
    "found again and again": f'lists.range(2000).all(x, {HERE}.text.findAll("a").size() == 64)',
    "a width too wide": '"%.1000000000d".format([1]) == ""',
    "a precision too precise": '"%.999999999999999999999f".format([1.0]) == ""',
    "a precision of a thousand": '"%.1000f".format([1.0]).size() > 0',
    "formats beyond number": f'"{"%s" * 2000}".format([1]) == ""',
    "a format that ends early": '"%".format([1]) == ""',
    "a list formatted deep": f'"%s".format([{"[" * 100}1{"]" * 100}]).size() > 0',
    "a sum too large": f"{_MOST} + 1 > 0",
    "a difference too small": f"{_LEAST} - 1 < 0",
    "a product too large": f"{_MOST} * 2 > 0",
    "the least divided": f"{_LEAST} / -1 > 0",
    "the least by remainder": f"{_LEAST} % -1 == 0",
    "the least negated": f"-({_LEAST}) > 0",
    "a literal too large": "9223372036854775808 > 0",
    "an unsigned literal too large": "18446744073709551616u > 0u",
    "an unsigned difference": "0u - 1u > 0u",
    "a double too large for an int": "int(1e300) > 0",
    "a double that is none": 'int(double("NaN")) > 0',
    "a double without end": 'int(double("Infinity")) > 0',
    "a literal double too large": "1e999 > 0.0",
    "a hexadecimal too large": "0xFFFFFFFFFFFFFFFFFF > 0",
    "a long number in a text": f'int("{"9" * 5000}") > 0',
    "a long double in a text": f'double("{"9" * 5000}") > 0.0',
    "a long double in a text with exponent": 'double("1e-999999999999") == 0.0',
    "a duration too long": 'duration("9999999999999h") > duration("1s")',
    "durations added": f'duration("{_MOST}ns") + duration("1ns") > duration("0s")',
    "a timestamp too late": f'timestamp({_MOST}) > timestamp("2024-01-01T00:00:00Z")',
    "a timestamp beyond its end": 'timestamp("9999-12-31T23:59:59Z") + duration("1s") > timestamp(0)',
    "a quantity of many digits": f'quantity("{"9" * 900}").isGreaterThan(quantity("1"))',
    "a quantity very fine": 'quantity("1e-900").isGreaterThan(quantity("0"))',
    "an exponent without end": 'quantity("1e99999999999999999999").isInteger()',
    "a version of large numbers": f'semver("{_MOST}0.0.0").major() > 0',
    "a version with a long tail": f'semver("1.0.0-{"a." * 2000}b").major() == 1',
    "positions beyond all": f'"abc".substring({_MOST}) == "" || [1][{_LEAST}] == 1',
    "a replacement counted down": f'"aaa".replace("a", "b", {_LEAST}) == "bbb"',
    "a split counted up": f'"a,b".split(",", {_MOST}).size() == 2',
    "an index of no number": "[1][0.5] == 1",
    "an address of many colons": f'isIP("{":" * 3000}")',
    "a long URL": f'isURL("https://h/{"%41" * 3000}")',
    "characters beyond the plane": '"\\U0010FFFF\\U0001F600".size() == 2',
    "half a character": '"\\uD800" == ""',
    "a character too far": '"\\U00110000" == ""',
    "bytes that are no text": 'string(b"\\xff\\xfe") == ""',
    "a null byte": '"a\\x00b".size() == 3',
    "names like Python's": "__class__.__mro__ == device.__dict__",
    "a loop over its own variable": "[1].all(device, device == 1)",
    "a running value by name": "[1].all(__result__, true)",
}
