"""Rules about the language: operators, functions and forms that CEL, or a device in CEL, does not have.

Knows no names that drivers publish. A slip is corrected only where the corrected text means the same.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from draco.resources.texts import slip_of
from draco.selectors.accesses import accesses
from draco.selectors.complaint import Complaint, ExpressionRule
from draco.selectors.tokens import Token, depth_after, matching, quoted, replaced

COMPARISONS: Final = frozenset({"<", "<=", ">", ">=", "==", "!="})
_WORDS: Final = {"and": "&&", "or": "||", "not": "!", "is": "=="}
_SIGNS: Final = {"=": "==", "&": "&&", "|": "||"}
_TESTS: Final = {"like": "contains", "~": "matches"}
"""Operators of other languages, and the functions of CEL for them."""
_FUNCTIONS: Final = {"version": "semver", "semver": "semver", "quantity": "quantity"}
_METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("tolowercase", "tolower", "lower", "lowercase", "lowerascii"), "lowerAscii"),
        **dict.fromkeys(("touppercase", "toupper", "upper", "uppercase", "upperascii"), "upperAscii"),
        "startswith": "startsWith",
        "endswith": "endsWith",
        "contain": "contains",
        "match": "matches",
        "compareto": "compareTo",
        "isgreaterthan": "isGreaterThan",
        "islessthan": "isLessThan",
    }
)
"""Methods by what people write for them, in lower case."""
_ORDERS: Final = {
    **dict.fromkeys(("isgreaterthanorequal", "isgreaterorequal", "isgreaterthanorequalto", "isatleast"), ">="),
    **dict.fromkeys(("islessthanorequal", "islessorequal", "islessthanorequalto", "isatmost"), "<="),
    **dict.fromkeys(("isequal", "isequalto", "equals"), "=="),
}
"""Methods that do not exist, and the comparison of compareTo with 0 for them."""
_TYPED: Final = frozenset(
    {"value", *(f"{kind}{end}" for kind in ("string", "int", "bool", "version") for end in ("", "Value"))}
)
"""Fields around a value in a ResourceSlice, which a selector does not see."""
_SEEN: Final = ("driver", "attributes", "capacity", "allowMultipleAllocations")
_OPERANDS: Final = frozenset({"name", "string", "number"})
_CONSTANTS: Final = frozenset({"true", "false", "null", "device"})


def _comments(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about comments of YAML, which become part of the expression in a block."""
    for token in found:
        if token.text == "#":
            text = replaced(expression, token.start, token.end, "//")
            yield Complaint("operator", "a comment within an expression begins with `//`, not with `#`", corrected=text)


def _operators(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about `and`, `or`, `not`, `===`, `LIKE` and single signs, which CEL does not have."""
    for index, token in enumerate(found):
        is_third = bool(index) and found[index - 1].end == token.start and found[index - 1].text in COMPARISONS
        if is_third and token.text == "=":
            sign = found[index - 1].text
            text = replaced(expression, token.start, token.end, "")
            yield Complaint("operator", f"there is no `{sign}=` in CEL", f"write `{sign}`", text)
            continue
        is_after_operand = bool(index) and (found[index - 1].kind in _OPERANDS or found[index - 1].text in {")", "]"})
        if (test := _TESTS.get(token.text.lower())) and is_after_operand and token.kind in {"name", "other"}:
            yield Complaint("operator", f"there is no `{token.text}` in CEL", f'write `.{test}("…")`')
            continue
        wanted = _SIGNS.get(token.text) if token.kind == "other" else _WORDS.get(token.text.lower())
        if wanted is None or is_third or (token.kind == "name" and is_after_operand == (wanted == "!")):
            continue
        before_bracket = index + 1 < len(found) and found[index + 1].text == "("
        end = found[index + 1].start if wanted == "!" and before_bracket else token.end
        fixed = None if wanted == "!" and not before_bracket else replaced(expression, token.start, end, wanted)
        advice = f"write `{wanted}{'(…)' * (fixed is None)}`"
        yield Complaint("operator", f"there is no `{token.text}` in CEL", advice, fixed)


def _functions(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    for index, token in enumerate(found[:-1]):
        if token.kind != "name" or found[index + 1].text != "(":
            continue
        is_method = bool(index) and found[index - 1].text == "."
        wanted = (_METHODS if is_method else _FUNCTIONS).get(token.text.lower())
        if wanted is not None and token.text != wanted:
            text = replaced(expression, token.start, token.end, wanted)
            yield Complaint("function", f"there is no function {token.text}", f"write `{wanted}(…)`", text)
        closing = matching(found, index + 1, 1)
        if is_method and closing is not None and (sign := _ORDERS.get(token.text.lower())):
            text = replaced(expression, found[closing].end, found[closing].end, f" {sign} 0")
            text = replaced(text, token.start, token.end, "compareTo")
            yield Complaint("function", f"there is no function {token.text}", f"write `compareTo(…) {sign} 0`", text)


def _globs(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about `*A100*`, which is no regular expression."""
    for index, token in enumerate(found[:-2]):
        pattern = quoted(found[index + 2]) or ""
        if token.text != "matches" or not pattern.startswith("*"):
            continue
        inner = pattern.strip("*")
        is_plain = pattern == f"*{inner}*" and inner.replace("-", "").replace(" ", "").isalnum()
        text = replaced(expression, token.start, found[index + 2].end, f'contains("{inner}"') if is_plain else None
        yield Complaint("function", "matches takes a regular expression", f'write `contains("{inner}")`', text)


def _lists(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about lists in parentheses."""
    for index, token in enumerate(found[:-1]):
        if token.text != "in" or token.kind != "name" or found[index + 1].text != "(":
            continue
        closing = matching(found, index + 1, 1)
        if closing is None or not _has_comma(found[index + 2 : closing]):
            continue
        text = replaced(expression, found[closing].start, found[closing].end, "]")
        text = replaced(text, found[index + 1].start, found[index + 1].end, "[")
        yield Complaint("operator", "a list has square brackets", "write `in […]`", text)


def _has_comma(found: list[Token]) -> bool:
    depth = 0
    for token in found:
        depth = depth_after(depth, token)
        if token.text == "," and depth == 0:
            return True
    return False


def _domains(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about a domain without brackets: `device.attributes.gpu.nvidia.com.model`."""
    for access in accesses(found):
        parts, at = [], access.domain.first
        while at + 1 < len(found) and found[at].text == "." and found[at + 1].kind == "name":
            parts.append(found[at + 1].text)
            at += 2
        if at < len(found) and found[at].text == "(":
            parts, at = parts[:-1], at - 2  # a method of the value
        if len(parts) < 4:
            continue
        wanted = f'device.{access.kind.text}["{".".join(parts[:-1])}"].{parts[-1]}'
        text = replaced(expression, found[access.start].start, found[at - 1].end, wanted)
        yield Complaint(
            "attribute-domain", "a domain is in brackets and quotes", f"write `{wanted}`", text, always_fails=True
        )


def _typed_values(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about `.string` and the like after an attribute."""
    for access in accesses(found):
        step, after = access.name, [token.text for token in found[access.end : access.end + 3]]
        if step is not None and after[:1] == ["."] and after[1:2] and after[1] in _TYPED and after[2:] != ["("]:
            first, last = access.end, access.end + 1
        elif step is not None and step.name in _TYPED and "/" in access.domain.name:
            first, last = step.first, step.last
        else:
            continue
        text = replaced(expression, found[first].start, found[last].end, "")
        yield Complaint(
            "typed-value",
            "a selector reads the value itself",
            f"leave out `.{found[last].text}`",
            text,
            always_fails=True,
        )


def _fields_of_device(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    for index, token in enumerate(found[:-2]):
        field = found[index + 2]
        is_read = (
            token.text == "device" and found[index + 1].text == "." and not (index and found[index - 1].text == ".")
        )
        if not is_read or field.kind != "name" or field.text in _SEEN:
            continue
        if meant := slip_of(field.text, _SEEN):
            text = replaced(expression, field.start, field.end, meant)
            yield Complaint("device-field", f"a device has no field {field.text}", f"write `device.{meant}`", text)
        else:
            yield Complaint(
                "device-field",
                f"a selector sees no device.{field.text}, only driver, attributes and capacity",
                "choose a device by an attribute such as its uuid, and a node by the pod's nodeSelector",
            )


def _quantities(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about `quantity(device.capacity…)`."""
    for access in accesses(found):
        before = [token.text for token in found[max(access.start - 2, 0) : access.start]]
        is_argument = before == ["quantity", "("] and found[access.end : access.end + 1]
        if access.kind.text == "capacity" and is_argument and found[access.end].text == ")":
            inner = expression[found[access.start].start : found[access.end - 1].end]
            text = replaced(expression, found[access.start - 2].start, found[access.end].end, inner)
            yield Complaint("function", "a capacity is a quantity already", "leave out `quantity(…)` around it", text)


def _bare_words(_expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about text without quotes on the right of a comparison."""
    for index, token in enumerate(found[1:], 1):
        following = found[index + 1].text if index + 1 < len(found) else ""
        is_word = token.kind == "name" and token.text not in _CONSTANTS and following not in {"(", ".", "["}
        is_bound = any(each.text == token.text for each in found[: index - 1])
        if is_word and not is_bound and found[index - 1].text in {"==", "!="}:
            yield Complaint("quotes", f"`{token.text}` is no variable", f'if a text is meant, write `"{token.text}"`')


LANGUAGE_RULES: Final[tuple[ExpressionRule, ...]] = (
    _comments,
    _operators,
    _functions,
    _globs,
    _lists,
    _domains,
    _typed_values,
    _fields_of_device,
    _quantities,
    _bare_words,
)
