"""Where cel-python differs from Kubernetes on plain CEL, and why.

Owns the list. In each of these cases Draco answers as Kubernetes does; a row that is out of date fails a test.
"""

from typing import Final, NamedTuple


class Answers(NamedTuple):
    """`true`, `false` or `error`; for cel-python also `unreadable` and the name of a Python error."""

    kubernetes: str
    cel_python: str


_TEXT: Final = "a" * 4000
_FAILS: Final = Answers("true", "error")
_FAILS_INSTEAD_OF_FALSE: Final = Answers("false", "error")
_FALSE: Final = Answers("true", "false")
_MISSES_ERROR: Final = Answers("error", "false")

DIFFERENCES: Final[dict[str, dict[str, Answers]]] = {
    "Numbers of different types are compared by their value in CEL. cel-python compares within one type only.": {
        "1 < 1.5": _FAILS,
        "1 == dyn(1.0)": _FAILS,
        "1u == dyn(1)": _FAILS,
        "dyn(1) == 1u": _FAILS,
        "9007199254740993 == dyn(9007199254740992.0)": _FAILS,
        "9223372036854775807 == dyn(9223372036854775808.0)": _FAILS,
        "9223372036854775807 < dyn(9223372036854775808.0)": _FAILS_INSTEAD_OF_FALSE,
        "[1, 2] == [dyn(1.0), dyn(2u)]": _FAILS,
        '{"a": 1} == {"a": dyn(1.0)}': _FAILS,
        "dyn(1.0) in [1, 2]": _FAILS,
        "dyn(1u) in [1, 2]": _FAILS,
        "dyn(1u) in {1: 2}": _FAILS,
        "{1: 2}[dyn(1.0)] == 2": _FAILS,
        "{1: 2}[dyn(1u)] == 2": _FAILS,
        "{dyn(1): 2, dyn(1u): 3}.size() == 2": _FAILS,
    },
    "Values of different types are not equal in CEL. For cel-python comparing them is an error.": {
        "1 == dyn(true)": _FAILS_INSTEAD_OF_FALSE,
        '[1] == dyn("x")': _FAILS_INSTEAD_OF_FALSE,
        "dyn(null) == 1": _FAILS_INSTEAD_OF_FALSE,
        'dyn("1") in [1, 2]': _FAILS_INSTEAD_OF_FALSE,
        "dyn([1]) in [1, 2]": _FAILS_INSTEAD_OF_FALSE,
        "dyn(true) in {1: 2}": _FAILS_INSTEAD_OF_FALSE,
        'dyn({}) in ["a"]': _FAILS_INSTEAD_OF_FALSE,
    },
    "cel-go keeps the last of two entries with one key. cel-python refuses the map.": {
        "{'a': 1, 'a': 2}.a == 2": _FAILS,
        "{1: 2, 1: 3}[1] == 3": _FAILS,
    },
    "A bool is no number in CEL. In Python it is one.": {
        "dyn(true) + dyn(true) == 1": _MISSES_ERROR,
        "dyn(true) - dyn(1) == 1": _MISSES_ERROR,
    },
    "A list has no element before its first. For Python those are the last ones.": {
        "[1, 2][-1] == 2": Answers("error", "true"),
    },
    "An error inside of a map is an error of the whole. cel-python keeps it until somebody asks for that entry.": {
        'has({"a": 1, "b": 1 / 0}.a)': Answers("error", "true"),
    },
    "cel-python's sums of texts and differences of spans of time lack functions of their type.": {
        '("a" + "b").contains("a")': _FAILS,
        '(duration("1h") - duration("1m")).getMinutes() == 59': _FAILS,
    },
    "`&&` and `||` absorb an error on either side. cel-python lets those of some macros pass.": {
        "false && [1].exists_one(i, 10 / (i - 1) > 0)": _FAILS_INSTEAD_OF_FALSE,
        "[1].map(i, 10 / (i - 1)) == [1] && false": _FAILS_INSTEAD_OF_FALSE,
        "[1].filter(i, 10 / (i - 1) > 0) == [1] && false": _FAILS_INSTEAD_OF_FALSE,
    },
    "An error is one of CEL's. cel-python writes some down, fails at that, and raises an error of Python's.": {
        '({"b": 2, "a": 1}).all(s, s < (string((((timestamp("1969-07-20T20:17:40Z")).getDayOfYear()) * (({})["b"])))))': Answers(
            "error", "IndexError"
        ),
    },
    "A text is no list of characters in CEL. A loop of Python's takes it for one.": {
        'dyn("ab").exists(c, c == "b")': Answers("error", "true"),
    },
    "Floating point and overflow: cel-python loses the sign of infinity, the lack of an order of NaN, and one overflow.": {
        "-1.0 / 0.0 < 0.0": _FALSE,
        'double("NaN") < 1.0': _MISSES_ERROR,
        "-9223372036854775808 % dyn(-1) == 0": Answers("error", "true"),
    },
    "Texts of values are Go's in CEL. cel-python's are Python's.": {
        'string(true) == "true"': _FALSE,
        'string(1.0) == "1"': _FALSE,
        'string(-0.0) == "-0"': _FALSE,
        'string(1e6) == "1e+06"': _FALSE,
        'string(duration("-1500ms")) == "-1.5s"': _FALSE,
        'string(duration("1ns")) == "0.000000001s"': _FALSE,
        'string(timestamp("2020-01-01T00:00:00.120+02:00")) == "2020-01-01T00:00:00.12+02:00"': _FALSE,
    },
    "cel-python lacks these conversions, and a type's name.": {
        'bool("true") && bool("T") && bool("1")': _FAILS,
        'double("0x1p-2") == 0.25': _FAILS,
        'int(duration("1s")) == 1000000000': _FAILS,
        'timestamp(1577836800) == timestamp("2020-01-01T00:00:00Z")': _FAILS,
        'type(duration("1s")) == google.protobuf.Duration': _FAILS,
    },
    "Moments and spans of time have nanoseconds and end with int64 in cel-go. cel-python has microseconds and no end.": {
        'timestamp("2020-01-01T00:00:00.000000001Z") == timestamp("2020-01-01T00:00:00Z")': Answers("false", "true"),
        'duration("2562047h") + duration(dyn("2562047h")) == duration("1s")': _MISSES_ERROR,
        'timestamp("9999-12-31T23:59:59Z") - timestamp("0001-01-01T00:00:00Z") == duration("1s")': _MISSES_ERROR,
    },
    "cel-python reads these texts otherwise: two escapes, and a newline between triple quotes, which it drops.": {
        r"""'\?\`' == "?`" """: _FALSE,
        "'''a\nb''' == 'a\\nb'": _FALSE,
    },
    "cel-go's grammar and macros have more than the specification: a comma behind the last element, map with a condition.": {
        "[1, 2,].size() == 2": Answers("true", "unreadable"),
        "{'a': 1,}.size() == 1": Answers("true", "unreadable"),
        "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]": Answers("true", "ValueError"),
    },
    "cel-go makes a set of constants behind `in`, and breaks down where it is asked for bytes.": {
        'dyn(b"a") in ["a"]': _MISSES_ERROR,
    },
    "Kubernetes stops what costs too much. cel-python knows no cost.": {
        f'[1, 2, 3, 4, 5, 6, 7].all(i, "{_TEXT}".contains("{_TEXT}"))': Answers("error", "true"),
    },
}
"""For each reason, the expressions that show it, with both answers."""
_TEN: Final = "[1,2,3,4,5,6,7,8,9,10].all"
EXPENSIVE: Final = f"{_TEN}(a, {_TEN}(b, {_TEN}(c, {_TEN}(d, {_TEN}(e, {_TEN}(f, true))))))"
"""An expression that Kubernetes stops at its cost limit; cel-python would compute for a minute."""


def is_known(expression: str, kubernetes: str, cel_python: str) -> bool:
    """Whether a random expression shows one of the differences listed above in another form.

    Either an error within `map`, `filter` or `exists_one` that `&&` or `

    ` does not absorb, or a Python error.
    """
    passes = any(f".{macro}(" in expression for macro in ("map", "filter", "exists_one"))
    absorbs = "&&" in expression or "||" in expression
    return (cel_python == "error" and passes and absorbs) or (kubernetes == "error" and cel_python == "IndexError")
