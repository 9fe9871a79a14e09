"""The status of a DeviceLimit: who holds how much, whether that is within the limit, and possible mistakes in it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from draco.allocation.ownership.claims import is_operators
from draco.limits.amounts import Amounts, Holdings, LimitedAmount
from draco.limits.rules import LimitRule, NamespaceLabels, use_text, written
from draco.resources.api.claims import DeviceClass
from draco.resources.api.limits import DeviceLimit, DeviceLimitStatus, LimitScope, NamespaceUse
from draco.resources.api.meta import Condition, timed
from draco.resources.texts import agreeing, counted, listed

CONDITION_WITHIN: Final = "WithinLimit"
LISTED_NAMESPACES: Final = 32
_EXCEEDED: Final = "Claims keep their devices; Draco allocates no more there until less is held or more is permitted."


class LimitUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit counts now: the amounts of each selected namespace."""

    rule: LimitRule
    by_namespace: Mapping[str, Amounts]
    unknown: Sequence[str] = ()
    """Devices of unknown size, because they are not published."""
    unsized: Sequence[str] = ()

    @property
    def together(self) -> Amounts:
        """The total of all selected namespaces."""
        return {
            amount: sum(each.get(amount, 0) for each in self.by_namespace.values()) for amount in self.rule.permitted
        }

    @property
    def scopes(self) -> Mapping[str, Amounts]:
        """What is compared with the limit: by namespace, or the total under ""."""
        return self.by_namespace if self.rule.per is LimitScope.NAMESPACE else {"": self.together}

    @property
    def fullest(self) -> str | None:
        """The namespace nearest to the limit, or ""; None if none is selected."""
        return max(sorted(self.scopes), key=lambda name: self.ratio(self.scopes[name]), default=None)

    def ratio(self, used: Amounts) -> float:
        """The used fraction of the limit, for its fullest amount; infinite if something is held and nothing permitted."""
        return max((_ratio(used.get(amount, 0), most) for amount, most in self.rule.permitted.items()), default=0.0)


def use_of(
    rule: LimitRule,
    namespaces: NamespaceLabels,
    held: Mapping[str, Holdings],
    unknown: Sequence[str] = (),
    unsized: Sequence[str] = (),
) -> LimitUse:
    """What the limit counts. `held` needs only namespaces whose claims hold something."""
    selected = [name for name, labels in namespaces.items() if rule.selector.selects(labels)]
    return LimitUse(
        rule=rule,
        by_namespace={name: rule.of(held.get(name, {})) for name in selected},
        unknown=unknown,
        unsized=unsized,
    )


def limit_status(
    limit: DeviceLimit,
    use: LimitUse,
    *,
    classes: Mapping[str, DeviceClass],
    waiting: int,
    allocates: bool,
    warned: int = 0,
    trouble: str = "",
    now: datetime,
) -> DeviceLimitStatus:
    """The status of a limit. `waiting` claims wait because of it; `allocates`: whether Draco allocates in this cluster.

    `warned` is the number of unused claims whose pods will be evicted, `trouble` why none can be.
    """
    generation = limit.metadata.generation
    condition = _condition(use, classes)
    parts = [condition.message, *_remarks(use, classes, allocates=allocates)]
    if (unused := limit.spec.unused) is not None:
        those = f"; those of {counted(warned, 'claim')} are warned" if warned else ""
        parts.append(f"Pods are evicted if what they hold is unused for {unused.evict_after}{those}. {trouble}".strip())
    if waiting:
        parts.insert(1, f"{counted(waiting, 'claim')} {agreeing(waiting, 'waits', 'wait')} because of it.")
    by_ratio = sorted(use.by_namespace.items(), key=lambda one: (-use.ratio(one[1]), one[0]))
    return DeviceLimitStatus(
        observed_generation=generation,
        selected=len(use.by_namespace),
        used=written(use.together),
        namespaces=[NamespaceUse(namespace=name, used=written(used)) for name, used in by_ratio[:LISTED_NAMESPACES]],
        waiting=waiting,
        message=" ".join(parts),
        conditions=[timed(condition, limit.status.conditions, now, generation=generation)],
    )


def class_remarks(names: Sequence[str], classes: Mapping[str, DeviceClass]) -> list[str]:
    """Remarks about the DeviceClasses that a limit names."""
    missing = [name for name in names if name not in classes]
    foreign = [name for name in names if name in classes and not is_operators(classes[name])]
    found = []
    if missing:
        found.append(f"There is no DeviceClass {listed(missing)}.")
    if foreign:
        found.append(
            f"kube-scheduler allocates claims of DeviceClass {listed(foreign)}: they are counted, not refused. Limit it with a "
            "ResourceQuota on `<class>.deviceclass.resource.k8s.io/devices`."
        )
    return found


def _condition(use: LimitUse, classes: Mapping[str, DeviceClass]) -> Condition:
    rule = use.rule
    fullest = use.fullest
    over = [name for name, used in use.scopes.items() if use.ratio(used) > 1]
    if not use.by_namespace or fullest is None:
        status, reason = "Unknown", "NothingSelected"
        message = "No namespace has the labels of spec.namespaceSelector, so nothing is limited."
    elif rule.classes and not rule.classes & classes.keys():
        status, reason = "Unknown", "NoDeviceClass"
        message = "None of spec.deviceClassNames exists, so nothing is limited."
    elif over:
        status, reason = "False", "Exceeded"
        who = f"{listed(sorted(over))} {agreeing(len(over), 'holds', 'hold')}" if over != [""] else "Together they hold"
        more = f": {use_text(use.scopes[fullest], rule.permitted)}" if len(over) == 1 else ""
        message = f"{who} more than is permitted{more}. {_EXCEEDED}"
    else:
        status, reason = "True", "WithinLimit"
        who = f"{counted(len(use.by_namespace), 'namespace')}"
        text = use_text(use.scopes[fullest], rule.permitted)
        if not rule.permitted:
            message = f"{who}, without a limit on amounts."
        else:
            message = f"{who} together: {text}." if fullest == "" else f"{who}; {fullest} has most: {text}."
    return Condition(type=CONDITION_WITHIN, status=status, reason=reason, message=message)


def _remarks(use: LimitUse, classes: Mapping[str, DeviceClass], *, allocates: bool) -> list[str]:
    found = class_remarks(sorted(use.rule.classes), classes)
    if use.unknown:
        are = agreeing(len(use.unknown), "is", "are")
        found.append(
            f"{listed(use.unknown)} {are} held and not published: each counts as one whole GPU without memory."
        )
    if use.unsized and LimitedAmount.MEMORY in use.rule.permitted:
        number = len(use.unsized)
        found.append(
            f"{listed(use.unsized)} {agreeing(number, 'is', 'are')} held and published without memory, and "
            f"{agreeing(number, 'counts', 'count')} 0 of it: limit gpuShare or devices as well."
        )
    if not allocates and use.rule.permitted:
        found.append("Draco allocates nothing here (chart value operator.allocate), so this is only counted.")
    return found


def _ratio(used: int, permitted: int) -> float:
    if not permitted:
        return float("inf") if used else 0.0
    return used / permitted
