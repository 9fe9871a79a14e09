"""Turns the command line of `draco taint` into devices, taints and rules. Pure."""

import hashlib
from collections.abc import Collection, Iterable, Sequence

from draco.maintenance.taint_rules import extends, is_draco_own, maintenance_uid
from draco.overview.taint_rules import selector_text
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.taints import EFFECTS, DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from draco.resources.errors import DracoError
from draco.resources.names import LONGEST_NAME, DeviceKey
from draco.resources.texts import listed, nearest
from draco.resources.written.limits import refusal

_DIGEST = 8
_EFFECTS = ", ".join(EFFECTS)


class TaintTargetError(DracoError):
    """The text matches no usable device, taint or rule."""


def taint_of(text: str) -> DeviceTaint:
    """Parse KEY[=VALUE]:EFFECT, the form of `kubectl taint`. Raises TaintTargetError."""
    said, colon, effect = text.rpartition(":")
    key, _, value = said.partition("=")
    if not colon or not key:
        raise TaintTargetError(
            f"'{text}' is not a taint: write KEY[=VALUE]:EFFECT, such as example.com/broken:NoSchedule, with one of {_EFFECTS}."
        )
    if effect not in EFFECTS:
        raise TaintTargetError(f"'{effect}' is not an effect of a device taint: write one of {_EFFECTS}.")
    taint = DeviceTaint(key=key, value=value, effect=effect)
    if said := refusal(DeviceTaintRule(metadata=ObjectMeta(), spec=DeviceTaintRuleSpec(taint=taint))):
        raise TaintTargetError(said)
    return taint


def device_of(text: str, published: Collection[DeviceKey]) -> DeviceKey:
    """Find a device by POOL/DEVICE, or by DRIVER/POOL/DEVICE if several drivers publish it. Raises TaintTargetError."""
    meant = [key for key in published if text in {str(key), f"{key.pool}/{key.device}"}]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise TaintTargetError(
            f"{text} is published by several drivers: write one of {listed(sorted(map(str, meant)))}."
        )
    pool = text.rpartition("/")[0]
    beside = {f"{key.pool}/{key.device}" for key in published if pool in {key.pool, f"{key.driver}/{key.pool}"}}
    raise TaintTargetError(
        f"no device {text} is published{nearest(text, beside or {f'{key.pool}/{key.device}' for key in published})}"
    )


def rule_on(device: DeviceKey, taint: DeviceTaint) -> DeviceTaintRule:
    """The rule that puts the taint on this device only. Its name depends on the key, so adding a key twice gives one rule."""
    digest = hashlib.sha256("\0".join((*device, taint.key)).encode()).hexdigest()[:_DIGEST]
    stem = f"{device.pool}-{device.device}".replace("/", "-")[: LONGEST_NAME - _DIGEST - 1].rstrip(".-")
    return DeviceTaintRule(
        metadata=ObjectMeta(name=f"{stem}-{digest}"),
        spec=DeviceTaintRuleSpec(
            device_selector=DeviceTaintSelector(driver=device.driver, pool=device.pool, device=device.device),
            taint=taint,
        ),
    )


def check_overwriting(before: DeviceTaintRule | None, wanted: DeviceTaintRule, *, overwrite: bool) -> None:
    """Raise TaintTargetError if an existing rule of this name differs and may not be changed."""
    if before is None:
        return
    name = before.metadata.name
    if before.spec.device_selector != wanted.spec.device_selector:
        raise TaintTargetError(f"rule {name} already exists, for other devices: rename or delete it.")
    if not overwrite and before.spec.taint.identity != wanted.spec.taint.identity:
        raise TaintTargetError(
            f"rule {name} taints this device with {before.spec.taint.identity}: change it with --overwrite."
        )


def rules_named(names: Iterable[str], rules: Sequence[DeviceTaintRule]) -> list[DeviceTaintRule]:
    """Find the rules by name. Raises TaintTargetError for an unknown name."""
    by_name = {rule.metadata.name: rule for rule in rules}
    for name in names:
        if name not in by_name:
            raise TaintTargetError(f"there is no DeviceTaintRule {name}{nearest(name, by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)]


def rules_to_remove(device: DeviceKey, text: str, rules: Sequence[DeviceTaintRule]) -> list[DeviceTaintRule]:
    """Find the rules that put the taint KEY[:EFFECT] on this device only. Raises TaintTargetError if there is none."""
    key, _, effect = text.removesuffix("-").partition(":")
    with_key = [rule for rule in rules if rule.spec.taint.key == key and effect in {"", rule.spec.taint.effect}]
    exact = DeviceTaintSelector(driver=device.driver, pool=device.pool, device=device.device)
    meant = [rule for rule in with_key if rule.spec.device_selector == exact]
    written = [rule for rule in meant if not is_draco_own(rule)]
    if written:
        return written
    wide = [rule for rule in with_key if rule.spec.device_selector and rule.spec.device_selector.matches(device)]
    if found := meant or wide:
        names = listed(rule.metadata.name for rule in found)
        raise TaintTargetError(
            f"the taint {text} on {device} comes from rule {names}, which selects more than this device: remove the rule by its "
            "name."
        )
    raise TaintTargetError(f"no rule puts the taint {text} on {device}: list them with `draco taint list`.")


def kept_by(rule: DeviceTaintRule, rules: Iterable[DeviceTaintRule], requests: Iterable[tuple[str, str]]) -> str:
    """Why Draco would write a removed rule again; "" if it would not. `requests`: UIDs and names of DeviceMaintenances."""
    name = rule.metadata.name
    names = dict(requests)
    if request := names.get(maintenance_uid(rule)):
        return (
            f"rule {name} belongs to DeviceMaintenance {request}, which would write it again: end that with "
            f"`draco maintain finish {request}` or `draco maintain cancel {request}`."
        )
    extended = extends(rule)
    if original := next((each for each in rules if extended and each.metadata.uid == extended), None):
        first = original.metadata.name
        return f"rule {name} extends rule {first} to the rest of a GPU, and Draco would create it again: remove rule {first}."
    return ""


def target_text(rule: DeviceTaintRule) -> str:
    """What a rule selects, as POOL/DEVICE where possible."""
    selector = rule.spec.device_selector
    if selector and selector.pool and selector.device:
        return f"{selector.pool}/{selector.device}"
    return selector_text(selector)
