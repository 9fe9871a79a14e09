"""A taint rule on one device, put on all that is the same hardware.

Kubernetes taints the one device that a rule names: a rule on gpu-0 leaves its partitions as they are.
Owns the rules by which Draco extends such a rule: their names, owner and taint, and which of them there should be. A rule is
extended if it names driver, pool and device and is no rule of Draco's own. Extensions belong to the rule that they extend, so the
cluster's garbage collector takes them away with it even when no operator runs.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.rules import MANAGED_BY
from draco.maintenance.rules import RULE_PREFIX as MAINTENANCE_PREFIX
from draco.resources.api.meta import ObjectMeta, OwnerReference
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from draco.resources.names import (
    ANNOTATION_EXTEND,
    ANNOTATION_OVERLAPS,
    LABEL_EXTENDS,
    LABEL_MANAGED_BY,
    DeviceKey,
)

EXTENSION_PREFIX = "draco-extension-"
_OWN_PREFIXES = (EXTENSION_PREFIX, MAINTENANCE_PREFIX)


class ExtensionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Rules to apply and to delete. `rule` is the name of the one that is extended, or its UID when it is gone."""

    rule: str
    apply: tuple[DeviceTaintRule, ...] = ()
    delete: tuple[DeviceTaintRule, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.apply or self.delete)

    def __str__(self) -> str:
        return f"rule {self.rule}: extend to {len(self.apply)} devices, take back from {len(self.delete)}"


def extended_device(rule: DeviceTaintRule) -> DeviceKey | None:
    """The one device that a rule names, if its taint is to be put on the same hardware; None for every other rule."""
    if rule.metadata.name.startswith(_OWN_PREFIXES) or rule.metadata.annotations.get(ANNOTATION_EXTEND) == "false":
        return None
    return _named_device(rule)


def extends(rule: DeviceTaintRule) -> str:
    """UID of the rule that this one extends; "" if it is no extension. Other people's rules never qualify."""
    return rule.metadata.labels.get(LABEL_EXTENDS, "") if rule.metadata.name.startswith(EXTENSION_PREFIX) else ""


def extension_for(original: DeviceTaintRule, device: DeviceKey, *, api_version: str) -> DeviceTaintRule:
    """The rule that puts the taint of `original` on `device`."""
    taint = original.spec.taint
    return DeviceTaintRule(
        metadata=ObjectMeta(
            name=_name(original.metadata.uid, device),
            labels={LABEL_EXTENDS: original.metadata.uid, LABEL_MANAGED_BY: MANAGED_BY},
            annotations={ANNOTATION_OVERLAPS: str(extended_device(original) or "")},
            owner_references=[
                OwnerReference(
                    api_version=api_version,
                    kind="DeviceTaintRule",
                    name=original.metadata.name,
                    uid=original.metadata.uid,
                    controller=True,
                )
            ],
        ),
        spec=DeviceTaintRuleSpec(
            device_selector=DeviceTaintSelector(driver=device.driver, pool=device.pool, device=device.device),
            taint=DeviceTaint(key=taint.key, value=taint.value, effect=taint.effect),
        ),
    )


def plan_extensions(
    original: DeviceTaintRule, in_place: Iterable[DeviceTaintRule], hardware: PoolHardware, *, api_version: str
) -> ExtensionPlan:
    """What to write so that exactly what is the same hardware has the taint of `original`.

    `in_place` are its extensions, `hardware` that of the pool of the device that it names. The extension on a device that is
    published no more stays: the device may be back in a moment, or be held by a claim still.
    """
    name = original.metadata.name
    named = extended_device(original)
    if named is None or original.metadata.deletion_timestamp is not None:
        return ExtensionPlan(rule=name, delete=tuple(in_place))
    devices = {named._replace(device=other) for other in hardware.overlapping(named.device)}
    standing: dict[DeviceKey, DeviceTaintRule] = {}
    surplus = []
    for rule in in_place:
        device = _named_device(rule)
        if device is None or rule.metadata.name != _name(original.metadata.uid, device):
            if not any(rule.metadata.name == _name(original.metadata.uid, each) for each in devices):
                surplus.append(rule)
        elif device in devices or (_is_gone(device, named, hardware) and _was_for(rule, named)):
            standing[device] = rule
        else:
            surplus.append(rule)
    wanted = [extension_for(original, device, api_version=api_version) for device in sorted(devices | standing.keys())]
    right = {rule.metadata.name: rule for rule in standing.values()}
    missing = [rule for rule in wanted if not _says(right.get(rule.metadata.name), rule)]
    return ExtensionPlan(rule=name, apply=tuple(missing), delete=tuple(surplus))


def plan_orphans(uid: str, in_place: Iterable[DeviceTaintRule]) -> ExtensionPlan:
    """What is left to do for a rule that is gone: take its extensions away."""
    return ExtensionPlan(rule=uid, delete=tuple(in_place))


def _name(uid: str, device: DeviceKey) -> str:
    """One name per rule and device: who applies it twice, applies it once. At most 96 characters."""
    digest = hashlib.sha256("\0".join((uid, *device)).encode()).hexdigest()[:16]
    return f"{EXTENSION_PREFIX}{device.device}-{digest}"


def _named_device(rule: DeviceTaintRule) -> DeviceKey | None:
    selector = rule.spec.device_selector
    if selector is None or not (selector.driver and selector.pool and selector.device):
        return None
    return DeviceKey(selector.driver, selector.pool, selector.device)


def _is_gone(device: DeviceKey, named: DeviceKey, hardware: PoolHardware) -> bool:
    return device[:2] == named[:2] and hardware.published_as(device.device) is None


def _was_for(rule: DeviceTaintRule, named: DeviceKey) -> bool:
    return rule.metadata.annotations.get(ANNOTATION_OVERLAPS) == str(named)


def _says(seen: DeviceTaintRule | None, wanted: DeviceTaintRule) -> bool:
    """Whether a rule seen in the cluster says what `wanted` says; fields that the server fills in are left aside."""
    if seen is None:
        return False
    have, want = seen.spec.taint, wanted.spec.taint
    return (
        (have.key, have.value, have.effect) == (want.key, want.value, want.effect)
        and wanted.metadata.labels.items() <= seen.metadata.labels.items()
        and wanted.metadata.annotations.items() <= seen.metadata.annotations.items()
        and {owner.uid for owner in wanted.metadata.owner_references}
        <= {owner.uid for owner in seen.metadata.owner_references}
    )
