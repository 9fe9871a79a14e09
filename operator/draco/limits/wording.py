"""What is said of limits: amounts as people write them, and why a claim waits.

Owns the sentences. Decides nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final

from draco.limits.amounts import ONE, Amounts, LimitedAmount
from draco.limits.rules import LimitRefusal
from draco.resources.api.limits import DeviceAmounts
from draco.resources.quantity import Format, Quantity

_NOUN: Final = {
    LimitedAmount.DEVICES: " devices",
    LimitedAmount.MEMORY: " of GPU memory",
    LimitedAmount.MEMORY_SLICES: " MIG memory slices",
    LimitedAmount.GPU_SHARE: " GPUs",
}
_FEWER: Final = "Ask for fewer devices"
_SMALLER: Final = "Ask for a smaller profile"


def refusal_text(refusals: Sequence[LimitRefusal], namespace: str, *, claims: int = 1) -> str:
    """Why claims wait, by the first limit that forbids them, and what to do."""
    first = refusals[0]
    noun = _NOUN[first.amount]
    used, taking, permitted = (text_of(first.amount, each) for each in (first.used, first.taking, first.permitted))
    takes = "this claim takes" if claims == 1 else f"these {claims} claims together take"
    less = _FEWER if first.amount is LimitedAmount.DEVICES else _SMALLER
    second = next((each.limit for each in refusals if each.limit != first.limit), "")
    also = f" DeviceLimit {second} forbids it too." if second else ""
    where = f"namespace {namespace}" if first.namespace else "its namespaces together"
    if first.taking > first.permitted:
        one = noun.removesuffix("s") if taking == "1" else noun
        said = f"{takes} {taking}{one}, and DeviceLimit {first.limit} permits {where} {permitted}"
        return f"{said[0].upper()}{said[1:]}.{also} {less}, or have the limit raised."
    who = f"Namespace {namespace} has" if first.namespace else f"The namespaces of DeviceLimit {first.limit} have"
    named = f" (DeviceLimit {first.limit})" if first.namespace else ""
    return f"{who} {used} of {permitted}{noun}{named}; {takes} {taking} more.{also} {less}, or free something."


def use_text(used: Amounts, permitted: Amounts) -> str:
    """How much is held of what is permitted: "2 of 4 devices, 78Gi of 80Gi of GPU memory"."""
    return ", ".join(
        f"{text_of(amount, used.get(amount, 0))} of {text_of(amount, most)}{_NOUN[amount]}"
        for amount, most in permitted.items()
    )


def text_of(amount: LimitedAmount, nanos: int) -> str:
    """An amount for people, not quite exact: 78Gi, 9.5Gi, 2.375."""
    if amount is not LimitedAmount.MEMORY:
        return _decimals(nanos / ONE, 3)
    octets = nanos // ONE
    unit, size = next((each for each in _UNITS if octets >= each[1]), ("", 1))
    return f"{_decimals(octets / size, 2)}{unit}"


def written(amounts: Amounts) -> DeviceAmounts:
    """The amounts as a status has them."""

    def of(amount: LimitedAmount, text: Callable[[int], str]) -> str | None:
        return text(amounts[amount]) if amount in amounts else None

    def whole(amount: LimitedAmount) -> int | None:
        return -(-amounts[amount] // ONE) if amount in amounts else None

    return DeviceAmounts(
        devices=whole(LimitedAmount.DEVICES),
        memory=of(LimitedAmount.MEMORY, lambda nanos: str(Quantity.of(nanos // ONE, Format.BINARY_SI))),
        memory_slices=whole(LimitedAmount.MEMORY_SLICES),
        gpu_share=of(LimitedAmount.GPU_SHARE, lambda nanos: _decimals(nanos / ONE, 3)),
    )


_UNITS: Final = (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))


def _decimals(number: float, most: int) -> str:
    return f"{number:.{most}f}".rstrip("0").rstrip(".")
