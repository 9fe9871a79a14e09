"""Finds mistakes in one selector and corrects them, rule by rule, until no rule finds anything.

Owns the rules about names and values; those about the language are in `slips`.
"""

from collections.abc import Iterator
from math import prod
from typing import Final

from draco.resources.names import NVIDIA_DRIVER
from draco.resources.quantity import quantity_meant
from draco.resources.texts import plain
from draco.selectors import known_names as names
from draco.selectors.accesses import Access, accesses, spelled
from draco.selectors.comparisons import by_function, version_meant
from draco.selectors.complaint import Complaint, ExpressionRule
from draco.selectors.slips import COMPARISONS, LANGUAGE_RULES
from draco.selectors.tokens import Token, chain_after, chain_before, matching, quoted, replaced, tokens

_ORDER: Final = COMPARISONS - {"==", "!="}
_METHODS: Final = frozenset({"compareTo", "isGreaterThan", "isLessThan"})
_TEXT_TESTS: Final = frozenset({"startsWith", "endsWith", "contains"})
_A_KIND: Final = {"attributes": "the attribute", "capacity": "the capacity"}
PLACEHOLDER: Final = "DRIVER"
"""Stands for an unknown domain in advice."""
_MOST: Final = 64
_LEAST_MEMORY: Final = 1 << 20
"""Bytes. No device has less memory."""
_EXACTLY: Final = (
    "`==` asks for exactly this quantity, which devices hardly ever have (an 80 GB GPU publishes about 81559Mi)"
)


def corrected(expression: str, driver: str | None) -> tuple[list[Complaint], str]:
    """Return all complaints, and the corrected expression. `driver` is None if unknown."""
    complaints: list[Complaint] = []
    seen: set[tuple[str, str]] = set()
    while len(complaints) < _MOST:
        found = tokens(expression)
        new = [
            complaint
            for rule in _RULES
            for complaint in rule(expression, found, driver)
            if (complaint.rule, complaint.message) not in seen
        ]
        if not new:
            break
        complaint = next((one for one in new if one.corrected is not None), new[0])
        seen.add((complaint.rule, complaint.message))
        complaints.append(complaint)
        expression = complaint.corrected or expression
    return complaints, expression


def _name_as_domain(expression: str, found: list[Token], driver: str | None) -> Iterator[Complaint]:
    """Complain about a name in place of its domain, alone or after it."""
    for access in accesses(found):
        written = access.domain.name
        domain, slash, name = written.rpartition("/")
        if not slash or not name.isidentifier():
            domain, name = driver or "", written
            if "." in written:
                continue
        if access.name is not None or _is_asked_for_presence(found, access):
            continue
        kind = access.kind.text
        if domain == NVIDIA_DRIVER:
            kind, domain, name = names.published_as(kind, name)
        wanted = f'device.{kind}["{domain or PLACEHOLDER}"]{spelled(name, like=access.domain)}'
        yield Complaint(
            "attribute-domain",
            f"`{written}` is in the place of a domain, so it names nothing",
            f"write `{wanted}`" + ("" if domain else " with the name of the driver that publishes it"),
            replaced(expression, found[access.start].start, found[access.end - 1].end, wanted) if domain else None,
        )


def _is_asked_for_presence(found: list[Token], access: Access) -> bool:
    """Whether `has(device.attributes.x)` tests it, where x may be a domain."""
    return access.start > 1 and found[access.start - 2].text == "has"


def _class_as_domain(expression: str, found: list[Token], driver: str | None) -> Iterator[Complaint]:
    for access in accesses(found):
        domain = access.domain.name
        is_class = domain in names.CLASSES and domain != NVIDIA_DRIVER
        is_vendor = domain in {"nvidia.com", "nvidia.com/gpu", "gpu.nvidia.com/gpu"} and driver in {NVIDIA_DRIVER, None}
        if is_class or is_vendor:
            wanted = f'["{NVIDIA_DRIVER}"]'
            start, end = found[access.domain.first].start, found[access.domain.last].end
            yield Complaint(
                "attribute-domain",
                f"no attribute has the domain {domain}",
                f"NVIDIA's driver publishes under its own name, {NVIDIA_DRIVER}",
                replaced(expression, start, end, wanted),
            )


def _attribute_or_capacity(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    for access in accesses(found):
        if access.name is None:
            continue
        name, is_nvidia = access.name.name, access.domain.name == NVIDIA_DRIVER
        is_amount = name in names.CAPACITIES if is_nvidia else _is_compared_with_quantity(found, access)
        is_attribute = is_nvidia and name in names.ATTRIBUTES
        if access.kind.text == "attributes" and is_amount and not is_attribute:
            cause, field = f"`{name}` is a capacity, not an attribute", "capacity"
        elif access.kind.text == "capacity" and is_attribute:
            cause, field = f"`{name}` is an attribute, not a capacity", "attributes"
        else:
            continue
        text = replaced(expression, access.kind.start, access.kind.end, field)
        yield Complaint("capacity-as-attribute", cause, f"read it from device.{field}", text)


def _is_compared_with_quantity(found: list[Token], access: Access) -> bool:
    after = [token.text for token in found[access.end : access.end + 4]]
    if after[:1] == ["."] and after[1:2] and after[1] in _METHODS:
        return after[2:] == ["(", "quantity"]
    return bool(after) and after[0] in COMPARISONS and after[1:2] == ["quantity"]


def _names_of_nvidia(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    for access in accesses(found):
        if access.name is None or access.domain.name != NVIDIA_DRIVER:
            continue
        name = access.name.name
        if name in names.ATTRIBUTES | names.CAPACITIES:
            continue
        if instead := names.INSTEAD.get(plain(name)):
            yield Complaint(
                "unknown-attribute", f"{NVIDIA_DRIVER} publishes no `{name}`{instead.since}", instead.advice
            )
            continue
        if names.meant(name) is None:
            yield Complaint(
                "unknown-attribute",
                f"{NVIDIA_DRIVER} publishes no `{name}`; on a device without it the selector fails, and the pod with it",
                severity="warning",
            )
            continue
        kind, domain, wanted = names.published_as(access.kind.text, name)
        read = f'{kind}["{domain}"]{spelled(wanted, like=access.name)}'
        what = f"`{wanted}`" if kind == access.kind.text else f"{_A_KIND[kind]} `{wanted}`"
        yield Complaint(
            "unknown-attribute",
            f"{NVIDIA_DRIVER} publishes no `{name}`",
            f"the nearest that it publishes is {what}"
            + (f" in the domain {domain}" if domain != NVIDIA_DRIVER else ""),
            replaced(expression, access.kind.start, found[access.name.last].end, read),
        )


def _values_of_nvidia(_expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about values that no NVIDIA GPU has: `productName == "H100"`, `architecture == "ampere"`."""
    for access in accesses(found):
        if access.name is None or access.domain.name != NVIDIA_DRIVER or access.kind.text != "attributes":
            continue
        for test, value in _tested(found, access):
            if wrong := names.wrong_value(access.name.name, test, value):
                yield Complaint("unknown-value", *wrong, severity="warning")


def _tested(found: list[Token], access: Access) -> Iterator[tuple[str, str]]:
    """The constants that an access is compared with, each with "==" or the function."""
    before, after = found[max(access.start - 2, 0) : access.start], found[access.end :]
    texts = [token.text for token in after[:4]]
    if texts[:1] == ["=="] and len(after) > 1:
        pieces, test = after[1:2], "=="
    elif [token.text for token in before[1:]] == ["=="]:
        pieces, test = before[:1], "=="
    elif texts[:2] == ["in", "["]:
        end = matching(after, 1, 1)
        pieces, test = after[2:end], "=="
    elif texts[:1] == ["."] and texts[1:2] and texts[1] in _TEXT_TESTS and texts[2:3] == ["("]:
        pieces, test = after[3:4], texts[1]
    else:
        return
    for token in pieces:
        if (value := quoted(token)) is not None:
            yield test, value


def _comparisons(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    reads = {access.start: access for access in accesses(found)}
    for index, token in enumerate(found):
        if token.kind != "operator" or token.text not in COMPARISONS:
            continue
        first, last = chain_before(found, index), chain_after(found, index + 1)
        if first is None or last is None:
            continue
        while [each.text for each in found[last : last + 1]] == ["*"] and found[last - 1].kind == "number":
            last = min(last + 2, len(found))
        left, right = found[first:index], found[index + 1 : last]
        kinds = [_kind(side, reads.get(start)) for side, start in ((left, first), (right, index + 1))]
        kind = next((one for one in kinds if one in {"quantity", "version"}), None)
        if kind == "quantity" and kinds == [kind, kind] and token.text == "==":
            instead = "compare with compareTo(…) >= 0, or choose by productName"
            yield Complaint("quantity-equality", _EXACTLY, instead, severity="warning")
        if kind is None or (kinds == [kind, kind] and token.text not in _ORDER):
            continue
        unit = "" if _product(right) else _missing_unit([*left, *right], reads.get(first) or reads.get(index + 1))
        texts = [_as(kind, side, expression, unit) for side in (left, right)]
        if texts[0] is None or texts[1] is None:
            continue
        wanted = by_function(texts[0], token.text, texts[1])
        for access in filter(None, (reads.get(first), reads.get(index + 1))):
            if access.name is None:  # its driver is unknown; reported by another rule
                here = expression[found[access.start].start : found[access.end - 1].end]
                wanted = wanted.replace(
                    here, f'device.{access.kind.text}["{PLACEHOLDER}"]{spelled(access.domain.name)}'
                )
        what = "a quantity" if kind == "quantity" else "a version"
        yield Complaint(
            f"{kind}-comparison",
            f"`{token.text}` does not compare {what}",
            f"write `{wanted}`{' if GiB are meant' if unit else ''}",
            None if unit else replaced(expression, left[0].start, right[-1].end, wanted),
        )


def _kind(side: list[Token], access: Access | None) -> str | None:
    """quantity, version or literal; None if it can be anything."""
    is_call = len(side) > 1 and side[1].text == "(" and matching(side, 1, 1) == len(side) - 1
    if is_call and side[0].text in {"quantity", "semver"}:
        return "quantity" if side[0].text == "quantity" else "version"
    if access is not None and access.name is not None and access.end - access.start == len(side):
        if access.kind.text == "capacity":
            return "quantity"
        if access.domain.name == NVIDIA_DRIVER and access.name.name in names.VERSIONS:
            return "version"
    return "literal" if len(side) == 1 and side[0].kind in {"string", "number"} else None


def _product(side: list[Token]) -> str:
    """The product of several integers as a quantity, such as 40Gi for 40*1024*1024*1024; "" for anything else."""
    factors, signs = [token.text for token in side[::2]], {token.text for token in side[1::2]}
    if signs != {"*"} or not all(each.isascii() and each.isdigit() and len(each) < 16 for each in factors):
        return ""
    amount = prod(map(int, factors))
    return f"{amount >> 30}Gi" if amount and amount % (1 << 30) == 0 else str(amount)


def _missing_unit(compared: list[Token], access: Access | None) -> str:
    """The unit that a number of memory probably has, if it is too small for bytes; else ""."""
    if access is None or access.name is None or "memory" not in access.name.name.lower():
        return ""
    literals = [quoted(token) or token.text for token in compared if token.kind in {"string", "number"}]
    return "Gi" if any(map(_is_few_bytes, literals)) else ""


def _is_few_bytes(written: str) -> bool:
    """Whether it is a number of bytes that no device's memory is as small as."""
    return written.isascii() and written.isdigit() and 0 < int(written[:20]) < _LEAST_MEMORY


def _as(kind: str, side: list[Token], expression: str, unit: str = "") -> str | None:
    """One side of a comparison as a value of the kind, a bare number with the unit; None for a literal without one."""
    text = expression[side[0].start : side[-1].end]
    if kind == "quantity" and (amount := _product(side)):
        return f'quantity("{amount}")'
    if len(side) > 1 or side[0].kind not in {"string", "number"}:
        return text
    written = quoted(side[0]) if side[0].kind == "string" else text
    if written is None:
        return None
    value = quantity_meant(written) if kind == "quantity" else version_meant(written)
    if value is None:
        return None
    return f'quantity("{value}{unit * value.isdigit()}")' if kind == "quantity" else f'semver("{value}")'


def _methods(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    for access in accesses(found):
        after = found[access.end : access.end + 5]
        if len(after) < 5 or after[0].text != "." or after[1].text not in _METHODS or after[4].text != ")":
            continue
        kind = _kind(found[access.start : access.end], access)
        argument = after[3]
        if kind not in {"quantity", "version"} or argument.kind not in {"string", "number"}:
            continue
        unit = _missing_unit([argument], access)
        wanted = _as(kind, [argument], expression, unit)
        if wanted is not None:
            yield Complaint(
                f"{kind}-comparison",
                f"{after[1].text} of a {kind} takes another {kind}",
                f"write `{wanted}`{' if GiB are meant' if unit else ''}",
                None if unit else replaced(expression, argument.start, argument.end, wanted),
            )


def _literals(expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about literals that compile but fail on every device: `quantity("40 GB")`, `semver("8.0")`."""
    for index, token in enumerate(found[:-3]):
        if token.text not in {"quantity", "semver"} or found[index + 1].text != "(" or found[index + 3].text != ")":
            continue
        literal = found[index + 2]
        written = quoted(literal)
        if written is None or (index and found[index - 1].text == "."):
            continue
        is_quantity = token.text == "quantity"
        wanted = quantity_meant(written) if is_quantity else version_meant(written)
        if wanted == written:
            continue
        what = "quantity" if is_quantity else "semantic version"
        yield Complaint(
            f"bad-{token.text}",
            f'"{written}" is not a {what}',
            f'write {token.text}("{wanted}")' if wanted else "",
            None if wanted is None else replaced(expression, literal.start, literal.end, f'"{wanted}"'),
            always_fails=True,
        )


def _bytes_of_memory(_expression: str, found: list[Token], _driver: str | None) -> Iterator[Complaint]:
    """Complain about memory without a suffix, which is a number of bytes."""
    for access in accesses(found):
        if access.name is None or access.kind.text != "capacity" or "memory" not in access.name.name.lower():
            continue
        after, before = found[access.end : access.end + 8], found[max(access.start - 7, 0) : access.start]
        written = ""
        if [token.text for token in after[2:5]] == ["(", "quantity", "("] and after[1].text in _METHODS:
            written = quoted(after[5]) or ""
        elif [token.text for token in before[:2]] == ["quantity", "("] and before[-2].text in _METHODS:
            written = quoted(before[2]) or ""
        if _is_few_bytes(written):
            yield Complaint(
                "memory-in-bytes",
                f'quantity("{written}") is {written} bytes of memory',
                f'write quantity("{written}Gi") if GiB are meant',
                severity="warning",
            )


_RULES: Final[tuple[ExpressionRule, ...]] = (
    *LANGUAGE_RULES,
    _name_as_domain,
    _class_as_domain,
    _attribute_or_capacity,
    _names_of_nvidia,
    _values_of_nvidia,
    _comparisons,
    _methods,
    _literals,
    _bytes_of_memory,
)
