"""DeviceLimits as rules: which namespaces and devices they count, what they permit, and why a claim waits.

A check starts from what is held at one moment and adds what it permits. Also owns amounts as people write them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from draco.limits.amounts import ONE, Amounts, DeviceOrigin, Holdings, LimitedAmount
from draco.resources.api.limits import DeviceAmounts, DeviceLimit, LimitScope
from draco.resources.api.meta import LabelSelector
from draco.resources.quantity import Format, Quantity

NamespaceLabels: TypeAlias = Mapping[str, Mapping[str, str]]


class LimitRule(msgspec.Struct, frozen=True, kw_only=True):
    """A DeviceLimit that was read. `permitted` has only the amounts that it limits."""

    name: str
    selector: LabelSelector
    per: LimitScope
    classes: frozenset[str]
    driver: str
    permitted: Amounts

    def counts(self, origin: DeviceOrigin) -> bool:
        """Whether the limit counts these devices. Before a device is chosen its driver is "": not counted if a driver is set."""
        return (not self.classes or origin.device_class in self.classes) and self.driver in {"", origin.driver}

    def of(self, holdings: Holdings) -> Amounts:
        """How much of what it limits is held."""
        found: Counter[LimitedAmount] = Counter()
        for origin, amounts in holdings.items():
            if self.counts(origin):
                found.update(amounts)
        return {amount: found[amount] for amount in self.permitted}


def rule_of(limit: DeviceLimit) -> LimitRule:
    """The rule. Omits invalid quantities, which the API server would refuse."""
    spec = limit.spec
    return LimitRule(
        name=limit.metadata.name,
        selector=spec.namespace_selector or LabelSelector(),
        per=spec.per,
        classes=frozenset(spec.device_class_names),
        driver=spec.driver,
        permitted=read_amounts(spec.limits),
    )


def read_amounts(written: DeviceAmounts) -> dict[LimitedAmount, int]:
    """The amounts that are set, in billionths."""
    texts = {LimitedAmount.MEMORY: written.memory, LimitedAmount.GPU_SHARE: written.gpu_share}
    quantities = {amount: Quantity.read(text) for amount, text in texts.items() if text is not None}
    numbers = {LimitedAmount.DEVICES: written.devices, LimitedAmount.MEMORY_SLICES: written.memory_slices}
    found = {amount: number * ONE for amount, number in numbers.items() if number is not None}
    found |= {amount: quantity.nanos for amount, quantity in quantities.items() if quantity is not None}
    return {amount: found[amount] for amount in LimitedAmount if amount in found}


class LimitRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim would take beyond a limit. `namespace` is "" if the limit covers all its namespaces together."""

    limit: str
    amount: LimitedAmount
    namespace: str
    used: int
    taking: int
    permitted: int


class LimitCheck:
    """All limits at one moment. `held` returns what the claims of a namespace hold; `take` adds to it."""

    def __init__(
        self, rules: Sequence[LimitRule], namespaces: NamespaceLabels, held: Callable[[str], Holdings]
    ) -> None:
        self._rules = rules
        self._namespaces = namespaces
        self._held = held
        self._taken: dict[str, list[Holdings]] = {}
        self._used: dict[tuple[str, str], Counter[LimitedAmount]] = {}  # by rule, and namespace or ""

    def refusals(self, namespace: str, taking: Holdings) -> list[LimitRefusal]:
        """The limits that forbid a namespace to take this too. Counts nothing."""
        found = []
        for rule in self._rules_for(namespace):
            more = rule.of(taking)
            if not any(more.values()):
                continue
            used, scope = self._used_of(rule, namespace), _scope(rule, namespace)
            found += [
                LimitRefusal(
                    limit=rule.name,
                    amount=amount,
                    namespace=scope,
                    used=used[amount],
                    taking=more[amount],
                    permitted=permitted,
                )
                for amount, permitted in rule.permitted.items()
                if more[amount] and used[amount] + more[amount] > permitted
            ]
        return found

    def take(self, namespace: str, taking: Holdings) -> None:
        """Count this as held."""
        self._taken.setdefault(namespace, []).append(taking)
        for rule in self._rules_for(namespace):
            if (known := self._used.get((rule.name, _scope(rule, namespace)))) is not None:
                known.update(rule.of(taking))

    def _rules_for(self, namespace: str) -> Iterable[LimitRule]:
        labels = self._namespaces[namespace]
        return (rule for rule in self._rules if rule.selector.selects(labels))

    def _used_of(self, rule: LimitRule, namespace: str) -> Counter[LimitedAmount]:
        key = rule.name, _scope(rule, namespace)
        if key not in self._used:
            used: Counter[LimitedAmount] = Counter()
            for each in self._of_scope(rule, namespace):
                for holdings in (self._held(each), *self._taken.get(each, ())):
                    used.update(rule.of(holdings))
            self._used[key] = used
        return self._used[key]

    def _of_scope(self, rule: LimitRule, namespace: str) -> Iterable[str]:
        if rule.per is LimitScope.NAMESPACE:
            return [namespace]
        return [name for name, labels in self._namespaces.items() if rule.selector.selects(labels)]


def _scope(rule: LimitRule, namespace: str) -> str:
    return namespace if rule.per is LimitScope.NAMESPACE else ""


_NOUN: Final = {
    LimitedAmount.DEVICES: " devices",
    LimitedAmount.MEMORY: " of GPU memory",
    LimitedAmount.MEMORY_SLICES: " MIG memory slices",
    LimitedAmount.GPU_SHARE: " GPUs",
}
_FEWER: Final = "Ask for fewer devices"
_SMALLER: Final = "Ask for a smaller profile or share"


def refusal_text(refusals: Sequence[LimitRefusal], namespace: str, *, claims: int = 1) -> str:
    """Why claims wait, by the first limit that forbids them, and the fix."""
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
    """Used and permitted amounts: "2 of 4 devices, 78Gi of 80Gi of GPU memory"."""
    return ", ".join(
        f"{text_of(amount, used.get(amount, 0))} of {text_of(amount, most)}{_NOUN[amount]}"
        for amount, most in permitted.items()
    )


def text_of(amount: LimitedAmount, nanos: int) -> str:
    """An amount for people, rounded: 78Gi, 9.5Gi, 2.375."""
    if amount is not LimitedAmount.MEMORY:
        return _decimals(nanos / ONE, 3)
    octets = nanos // ONE
    unit, size = next((each for each in _UNITS if octets >= each[1]), ("", 1))
    return f"{_decimals(octets / size, 2)}{unit}"


def written(amounts: Amounts) -> DeviceAmounts:
    """The amounts for a status."""

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
