"""The taint rules that Draco writes: one that isolates a device for a request, extensions of a person's rule, fences.

Owns each rule's name, selector, labels and owner, and how such a rule is recognised. A rule is owned by its request, by the rule
that it extends, or by the GpuNode, so the garbage collector deletes it with its owner even when no operator runs.

Kubernetes taints only the device that a rule names: a rule on gpu-0 does not taint its partitions. Draco puts the taint on all
devices of the same hardware. It extends every rule that names driver, pool and device and is not its own. Its own rules also name
all three, so they cannot reach another device; only a fence covers all devices of a pool, whose agent is lost. `health.fencing`
decides whom to fence.
"""

import hashlib
from collections.abc import Collection, Iterable

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.resources.api.draco import GpuNode
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceTaint
from draco.resources.api.meta import ObjectMeta, OwnerReference
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from draco.resources.kinds import DEVICE_MAINTENANCES, GPU_NODES, Kind
from draco.resources.names import (
    ANNOTATION_EXTEND,
    ANNOTATION_OVERLAPS,
    ANNOTATION_UUID,
    DRACO_DOMAIN,
    LABEL_EXTENDS,
    LABEL_FENCES,
    LABEL_MAINTENANCE,
    LABEL_MANAGED_BY,
    TAINT_AGENT_LOST,
    DeviceKey,
    PoolKey,
)

RULE_PREFIX = "draco-maintenance-"
MANAGED_BY = DRACO_DOMAIN


def rule_name(uid: str, device: DeviceKey, *, prefix: str = RULE_PREFIX) -> str:
    """One name per device and request or extended rule, so applying it twice makes one rule. At most 98 characters."""
    return f"{prefix}{device.device}-{_digest(uid, *device)}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def rule_for(
    request: DeviceMaintenance, device: DeviceKey, *, overlaps: str = "", board: str = "", effect: str = ""
) -> DeviceTaintRule:
    """The rule that isolates `device` for `request`.

    `overlaps` is the requested device if this one only shares its hardware; `board` is the GPU's UUID; `effect` overrides the
    effect of the request's taint.
    """
    taint = request.spec.taint
    said = {ANNOTATION_OVERLAPS: overlaps, ANNOTATION_UUID: board}
    return _rule(
        rule_name(request.metadata.uid, device),
        device,
        msgspec.structs.replace(taint, effect=effect or taint.effect),
        labels={LABEL_MAINTENANCE: request.metadata.uid},
        annotations={name: text for name, text in said.items() if text},
        owner=DEVICE_MAINTENANCES.owner(request.metadata),
    )


def _rule(
    name: str,
    on: DeviceKey | PoolKey,
    taint: DeviceTaint | MaintenanceTaint,
    *,
    labels: dict[str, str],
    owner: OwnerReference,
    annotations: dict[str, str] | None = None,
) -> DeviceTaintRule:
    return DeviceTaintRule(
        metadata=ObjectMeta(
            name=name,
            labels={**labels, LABEL_MANAGED_BY: MANAGED_BY},
            annotations=annotations or {},
            owner_references=[owner],
        ),
        spec=DeviceTaintRuleSpec(
            device_selector=DeviceTaintSelector(**on._asdict()),
            taint=DeviceTaint(key=taint.key, value=taint.value, effect=taint.effect),
        ),
    )


def maintenance_uid(rule: DeviceTaintRule) -> str:
    """UID of the request that the rule serves, "" if it is not a maintenance rule. Other people's rules never qualify."""
    if not rule.metadata.name.startswith(RULE_PREFIX):
        return ""
    return rule.metadata.labels.get(LABEL_MAINTENANCE, "")


def maintained_device(rule: DeviceTaintRule) -> DeviceKey | None:
    """The device of a maintenance rule; None if the rule's name does not match its selector."""
    device = _named_device(rule)
    return device if device and rule.metadata.name == rule_name(maintenance_uid(rule), device) else None


def isolated_board(rule: DeviceTaintRule) -> str:
    """UUID of the GPU that the device was when the rule was written; "" if unknown."""
    return rule.metadata.annotations.get(ANNOTATION_UUID, "")


def overlapped(rule: DeviceTaintRule) -> str:
    """The requested device, if the rule's own one only shares its hardware; else ""."""
    return rule.metadata.annotations.get(ANNOTATION_OVERLAPS, "")


def isolates_as(rule: DeviceTaintRule, wanted: DeviceTaintRule) -> bool:
    """Whether a rule in the cluster has what `wanted` has; fields that the server fills in are ignored."""
    seen, want = rule.spec.taint, wanted.spec.taint
    owners = {owner.uid for owner in rule.metadata.owner_references}
    return (
        rule.spec.device_selector == wanted.spec.device_selector
        and seen.identity == want.identity
        and all(rule.metadata.labels.get(key) == value for key, value in wanted.metadata.labels.items())
        and all(rule.metadata.annotations.get(key) == text for key, text in wanted.metadata.annotations.items())
        and all(owner.uid in owners for owner in wanted.metadata.owner_references)
    )


EXTENSION_PREFIX = "draco-extension-"
FENCE_PREFIX = "draco-fence-"
_OWN_PREFIXES = (EXTENSION_PREFIX, RULE_PREFIX, FENCE_PREFIX)


class ExtensionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Rules to apply and to delete. `rule` is the name of the extended rule, or its UID once it is deleted."""

    rule: str
    apply: tuple[DeviceTaintRule, ...] = ()
    delete: tuple[DeviceTaintRule, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.apply or self.delete)

    def __str__(self) -> str:
        return f"rule {self.rule}: extend to {len(self.apply)} devices, take back from {len(self.delete)}"


def is_draco_own(rule: DeviceTaintRule) -> bool:
    """Whether Draco wrote the rule, and deletes it automatically."""
    return rule.metadata.name.startswith(_OWN_PREFIXES)


def extended_device(rule: DeviceTaintRule) -> DeviceKey | None:
    """The one device that a rule names, if Draco extends its taint to the same hardware; None for every other rule."""
    if is_draco_own(rule) or rule.metadata.annotations.get(ANNOTATION_EXTEND) == "false":
        return None
    return _named_device(rule)


def means(
    rule: DeviceTaintRule, hardware: PoolHardware, device: DeviceKey, *, extended_to: Collection[DeviceKey] = ()
) -> bool:
    """Whether the rule taints the device of a pool with this hardware. `extended_to`: the devices of its extensions."""
    selector = rule.spec.device_selector
    if selector is None:
        return False
    if selector.matches(device):
        return True
    named = extended_device(rule)
    if named is None or named[:2] != device[:2]:
        return False
    return device in extended_to or hardware.overlap(device.device, named.device)


def extends(rule: DeviceTaintRule) -> str:
    """UID of the rule that this one extends; "" if it is no extension. Other people's rules never qualify."""
    return rule.metadata.labels.get(LABEL_EXTENDS, "") if rule.metadata.name.startswith(EXTENSION_PREFIX) else ""


def extension_for(original: DeviceTaintRule, device: DeviceKey, *, kind: Kind[DeviceTaintRule]) -> DeviceTaintRule:
    """The rule that puts the taint of `original` on `device`."""
    return _rule(
        rule_name(original.metadata.uid, device, prefix=EXTENSION_PREFIX),
        device,
        original.spec.taint,
        labels={LABEL_EXTENDS: original.metadata.uid},
        annotations={ANNOTATION_OVERLAPS: str(extended_device(original) or "")},
        owner=kind.owner(original.metadata),
    )


def plan_extensions(
    original: DeviceTaintRule,
    in_place: Iterable[DeviceTaintRule],
    hardware: PoolHardware,
    *,
    kind: Kind[DeviceTaintRule],
) -> ExtensionPlan:
    """What to write so that exactly the devices of the same hardware have the taint of `original`.

    `in_place` are its extensions, `hardware` that of the named device's pool. An extension stays on a device that is not
    published any more: the device may come back, or a claim may still hold it. All extensions stay while the named device is not
    published, for example a partition whose GPU was divided otherwise: its size is unknown then, and what overlapped it is the
    hardware that somebody wants out of service.
    """
    name = original.metadata.name
    named = extended_device(original)
    if named is None or original.metadata.deletion_timestamp is not None:
        return ExtensionPlan(rule=name, delete=tuple(in_place))
    devices = {named._replace(device=other) for other in hardware.overlapping(named.device)}
    existing: dict[DeviceKey, DeviceTaintRule] = {}
    surplus = []
    for rule in in_place:
        device = _named_device(rule)
        if device is None or rule.metadata.name != rule_name(original.metadata.uid, device, prefix=EXTENSION_PREFIX):
            if not any(
                rule.metadata.name == rule_name(original.metadata.uid, each, prefix=EXTENSION_PREFIX)
                for each in devices
            ):
                surplus.append(rule)
        elif device in devices or (extended_from(rule) == str(named) and _is_gone((device, named), hardware)):
            existing[device] = rule
        else:
            surplus.append(rule)
    wanted = [extension_for(original, device, kind=kind) for device in sorted(devices | existing.keys())]
    right = {rule.metadata.name: rule for rule in existing.values()}
    missing = [
        rule for rule in wanted if rule.metadata.name not in right or not isolates_as(right[rule.metadata.name], rule)
    ]
    return ExtensionPlan(rule=name, apply=tuple(missing), delete=tuple(surplus))


def plan_orphans(uid: str, in_place: Iterable[DeviceTaintRule]) -> ExtensionPlan:
    """The plan for a deleted rule: delete its extensions."""
    return ExtensionPlan(rule=uid, delete=tuple(in_place))


def _named_device(rule: DeviceTaintRule) -> DeviceKey | None:
    return rule.spec.device_selector.named if rule.spec.device_selector else None


def _is_gone(devices: tuple[DeviceKey, DeviceKey], hardware: PoolHardware) -> bool:
    one, other = devices
    return one[:2] == other[:2] and any(hardware.published_as(each.device) is None for each in devices)


def extended_from(rule: DeviceTaintRule) -> str:
    """The device from which a rule was extended; "" if it is no extension."""
    return rule.metadata.annotations.get(ANNOTATION_OVERLAPS, "") if extends(rule) else ""


def fence_name(pool: PoolKey) -> str:
    """One name per pool, so applying it twice makes one rule."""
    return f"{FENCE_PREFIX}{_digest(*pool)}"


def fence_for(gpu_node: GpuNode, pool: PoolKey) -> DeviceTaintRule:
    """The rule that keeps new claims off the node's devices."""
    return _rule(
        fence_name(pool),
        pool,
        DeviceTaint(key=TAINT_AGENT_LOST, effect="NoSchedule"),
        labels={LABEL_FENCES: _digest(*pool)},
        owner=GPU_NODES.owner(gpu_node.metadata),
    )


def is_fence(rule: DeviceTaintRule) -> bool:
    """Whether Draco wrote the rule to fence a node. Other people's rules never qualify."""
    return rule.metadata.name.startswith(FENCE_PREFIX) and LABEL_FENCES in rule.metadata.labels


def fenced_node(rule: DeviceTaintRule) -> str:
    """The node that the rule fences; "" if it is no fence."""
    selector = rule.spec.device_selector
    return (selector.pool or "") if is_fence(rule) and selector is not None else ""
