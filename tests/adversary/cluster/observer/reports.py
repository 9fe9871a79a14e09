"""The law of reports: at rest, each person's taint rule has one Event with the number of tainted devices and their holders.

Owns comparing that text with the published and held hardware. Shares no code with the Event's writer. Does no I/O.
"""

import re
from collections.abc import Iterator

from tests.adversary.cluster.observer.members import users_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import DeviceName, Object, Part, World, name, phase, results

REASON = "TaintImpact"
_NOTHING = ("No published device matches it", "It has no spec.deviceSelector")
_DEVICES = re.compile(r"(?:off|a taint on) (\d+) devices?")
_OVER = {"Succeeded", "Failed"}
_DELETES = re.compile(r"deletes? (no|\d+) pods?")


def misreported(world: World) -> Iterator[Suspicion]:
    """Every rule whose Event describes its reach wrongly."""
    told = {
        each["regarding"].get("uid"): str(each.get("note"))
        for each in world.events.values()
        if each.get("reason") == REASON and each.get("regarding")
    }
    for uid, rule in world.rules.items():
        if rule["metadata"]["name"].startswith("draco-") or rule["metadata"].get("deletionTimestamp"):
            continue
        if wrong := _wrong(world, rule, told.get(uid, "")):
            yield Suspicion("misreported", uid, f"rule {name(rule)}: {wrong}")


def _wrong(world: World, rule: Object, note: str) -> str:
    if not note:
        return "no Event says what it does"
    devices = {device for device, _ in world.published() if _means(world, rule, device)}
    claims = [claim for claim in world.claims.values() if any(_means(world, rule, each) for each in _devices(claim))]
    if not devices and not claims:
        return "" if note.startswith(_NOTHING) else f"it taints nothing, and its Event says: {note}"
    said = _DEVICES.search(note)
    number = 0 if note.startswith(_NOTHING) else int(said[1]) if said else -1
    least = 0 if _is_gone(world, rule) else len(devices)
    if not least <= number <= len(devices):
        return f"it taints {len(devices)} devices, and its Event says: {note}"
    users = {name(pod) for claim in claims for pod in users_of(world, claim) if phase(pod) not in _OVER}
    deleted = _DELETES.search(note)
    if deleted and deleted[1] != "no" and int(deleted[1]) > len(users):
        return f"at most {len(users)} pods use what it taints, and its Event says: {note}"
    return ""


def _is_gone(world: World, rule: Object) -> bool:
    """Whether it names a device that is no longer published. Draco, unlike this observer, does not remember its hardware."""
    wanted = tuple((rule["spec"].get("deviceSelector") or {}).get(each) for each in ("driver", "pool", "device"))
    return all(wanted) and wanted not in {tuple(device) for device, _ in world.published()}


def _means(world: World, rule: Object, device: DeviceName) -> bool:
    """Whether the rule selects the device, or names one on the same hardware."""
    selector = rule["spec"].get("deviceSelector")
    if selector is None:
        return False
    wanted = (selector.get("driver"), selector.get("pool"), selector.get("device"))
    if all(want in {None, "", have} for want, have in zip(wanted, device, strict=True)):
        return True
    named = DeviceName(*(str(want) for want in wanted))
    if not all(wanted) or named[:2] != device[:2]:
        return False
    one, other = (_part(world, each) for each in (named, device))
    return one is not None and other is not None and one.overlaps(other)


def _part(world: World, device: DeviceName) -> Part | None:
    return next((part for _, part in reversed(world.names.history.get(device, []))), None)


def _devices(claim: Object) -> Iterator[DeviceName]:
    for each in results(claim):
        yield DeviceName(each["driver"], each["pool"], each["device"])
