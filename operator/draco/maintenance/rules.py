"""The exact taint rule that isolates one device for one request.

Owns the rule's name, selector, labels and owner, and how such a rule is recognised again. A rule names driver, pool and device,
so it can never reach another device, and it belongs to its request, so the cluster's garbage collector takes it away with the
request even when no operator runs.
"""

import hashlib

from draco.resources.api.draco import DeviceMaintenance
from draco.resources.api.meta import ObjectMeta, OwnerReference
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco.resources.names import (
    ANNOTATION_OVERLAPS,
    ANNOTATION_UUID,
    DRACO_DOMAIN,
    LABEL_MAINTENANCE,
    LABEL_MANAGED_BY,
    DeviceKey,
)

RULE_PREFIX = "draco-maintenance-"
MANAGED_BY = DRACO_DOMAIN


def rule_name(uid: str, device: DeviceKey) -> str:
    """One name per request and device: who applies it twice, applies it once. At most 98 characters."""
    digest = hashlib.sha256("\0".join((uid, *device)).encode()).hexdigest()[:16]
    return f"{RULE_PREFIX}{device.device}-{digest}"


def rule_for(request: DeviceMaintenance, device: DeviceKey, *, overlaps: str = "", board: str = "") -> DeviceTaintRule:
    """The rule that isolates `device` for `request`.

    `overlaps` is the device that was asked for, if this one is merely the same hardware; `board` is the UUID of the GPU.
    """
    said = {ANNOTATION_OVERLAPS: overlaps, ANNOTATION_UUID: board}
    return DeviceTaintRule(
        metadata=ObjectMeta(
            name=rule_name(request.metadata.uid, device),
            labels={LABEL_MAINTENANCE: request.metadata.uid, LABEL_MANAGED_BY: MANAGED_BY},
            annotations={name: text for name, text in said.items() if text},
            owner_references=[
                OwnerReference(
                    api_version=DEVICE_MAINTENANCES.api_version,
                    kind=DEVICE_MAINTENANCES.kind,
                    name=request.metadata.name,
                    uid=request.metadata.uid,
                    controller=True,
                )
            ],
        ),
        spec=DeviceTaintRuleSpec(
            device_selector=DeviceTaintSelector(driver=device.driver, pool=device.pool, device=device.device),
            taint=DeviceTaint(
                key=request.spec.taint.key, value=request.spec.taint.value, effect=request.spec.taint.effect
            ),
        ),
    )


def maintenance_uid(rule: DeviceTaintRule) -> str:
    """UID of the request that the rule serves, "" when it is not a maintenance rule. Other people's rules never qualify."""
    if not rule.metadata.name.startswith(RULE_PREFIX):
        return ""
    return rule.metadata.labels.get(LABEL_MAINTENANCE, "")


def maintained_device(rule: DeviceTaintRule) -> DeviceKey | None:
    """The device of a maintenance rule, `None` when the rule is not the one that its name promises."""
    selector = rule.spec.device_selector
    if selector is None or not (selector.driver and selector.pool and selector.device):
        return None
    device = DeviceKey(selector.driver, selector.pool, selector.device)
    return device if rule.metadata.name == rule_name(maintenance_uid(rule), device) else None


def isolated_board(rule: DeviceTaintRule) -> str:
    """UUID of the GPU that the rule's device was when the rule was made; "" where that was not known."""
    return rule.metadata.annotations.get(ANNOTATION_UUID, "")


def overlapped(rule: DeviceTaintRule) -> str:
    """The device that was asked for, if the rule's own one is merely the same hardware; else ""."""
    return rule.metadata.annotations.get(ANNOTATION_OVERLAPS, "")


def isolates_as(rule: DeviceTaintRule, wanted: DeviceTaintRule) -> bool:
    """Whether a rule seen in the cluster says what `wanted` says; fields that the server fills in are left aside."""
    seen, want = rule.spec.taint, wanted.spec.taint
    owners = {owner.uid for owner in rule.metadata.owner_references}
    return (
        rule.spec.device_selector == wanted.spec.device_selector
        and (seen.key, seen.value, seen.effect) == (want.key, want.value, want.effect)
        and all(rule.metadata.labels.get(key) == value for key, value in wanted.metadata.labels.items())
        and all(rule.metadata.annotations.get(key) == text for key, text in wanted.metadata.annotations.items())
        and all(owner.uid in owners for owner in wanted.metadata.owner_references)
    )
