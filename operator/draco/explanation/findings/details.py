"""Details of one device's cause: the values that a selector read, the holder, the shortage, a taint's origin. Judges nothing."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.pools import Candidate, PoolView
from draco.allocation.fleet.state import amount
from draco.cel import AttributePath, CompileError, compile_selector
from draco.explanation.findings.verdicts import ConstrainedRequest, DeviceFinding, Judge, counter_names
from draco.explanation.model import Cause, Holder, SeenValue, SelectorRef, Shortage, TaintSeen
from draco.resources.api.claims import ResourceClaim, ResourceClaimConsumerReference
from draco.resources.api.slices import Device
from draco.resources.api.taints import DeviceTaintRule, TaintIdentity
from draco.resources.names import LABEL_EXTENDS
from draco.resources.quantity import Quantity
from draco.selectors.accesses import path_text

MAX_LISTED: Final = 5
TRIED_BEFORE: Final = ResourceClaimConsumerReference(resource="tried", name="before", uid="")
"""The consumer of a claim that a simulation tried without a pod, so that it is not called idle."""
_BILLION: Final = 10**9


class DeviceDetails:
    """Details of one device's cause, as fields of CauseCount and DeviceVerdict."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._judge = Judge(fleet.inventory.selectors, fleet.state)

    def of(
        self, constrained: ConstrainedRequest, view: PoolView, candidate: Candidate, finding: DeviceFinding
    ) -> dict[str, Any]:
        """The details for a device and a request."""
        fleet = self._fleet
        details: dict[str, Any] = {}
        match finding:
            case DeviceFinding(Cause.NOT_SELECTED, int(place)):
                selector = selector_ref(constrained, place)
                details = {"selector": selector, "values": values_seen([candidate], selector.expression)}
            case DeviceFinding(Cause.CONFIGURATION_REFUSED, str(unable)):
                details = {"error": unable}
            case DeviceFinding(Cause.SELECTOR_FAILED, (int(place), str(error))):
                selector = selector_ref(constrained, place)
                values = values_seen([candidate], selector.expression)
                details = {"selector": selector, "error": error, "values": values}
            case DeviceFinding(Cause.IN_USE):
                claims = [fleet.claims[key] for key in fleet.holders(candidate.key) if key in fleet.claims]
                details = {"holders": [holder(claim) for claim in claims[:MAX_LISTED]]}
            case DeviceFinding(Cause.TAINTED, tuple(taints)):
                details = {"taints": [taint_seen(fleet, candidate, taint) for taint in taints]}
            case DeviceFinding(Cause.COUNTERS_SHORT):
                details = {"shortage": counter_shortage(fleet, self._judge, view, candidate)}
            case DeviceFinding(Cause.CAPACITY_SHORT, ("", str(error))):
                details = {"error": error}
            case DeviceFinding(Cause.CAPACITY_SHORT, (str(name), str(how))):
                details = {"shortage": capacity_shortage(fleet, constrained, candidate, name, how)}
        return details


def selector_ref(constrained: ConstrainedRequest, place: int) -> SelectorRef:
    """The request's selector at that position."""
    source, index, selector = constrained.selectors[place]
    return SelectorRef(source=source, index=index, expression=selector.cel.expression if selector.cel else "")


@lru_cache(maxsize=256)
def paths_of(expression: str) -> tuple[AttributePath, ...]:
    """The attributes and capacities that a selector reads by name; none if it does not compile."""
    try:
        paths = compile_selector(expression).paths
    except CompileError:
        return ()
    return tuple(sorted(path for path in paths if path.kind in {"attributes", "capacity"} and path.domain and path.id))


def value_of(driver: str, device: Device, path: AttributePath) -> str:
    """The device's value at the path, as text; "" if it has none."""
    full = f"{path.domain}/{path.id}"
    names = [full, path.id or ""] if path.domain == driver else [full]
    for name in names:
        if path.kind == "attributes" and name in device.attributes:
            value = device.attributes[name].value
            return str(value).lower() if isinstance(value, bool) else str(value)
        if path.kind == "capacity" and name in device.capacity:
            return device.capacity[name].value
    return ""


def values_seen(devices: Iterable[Candidate], expression: str) -> list[SeenValue]:
    """The values that a selector read on these devices, per path, the most frequent first."""
    paths = paths_of(expression)
    counts: dict[tuple[str, str], int] = {}
    for candidate in devices:
        for path in paths:
            key = (path_text(path), value_of(candidate.key.driver, candidate.device, path))
            counts[key] = counts.get(key, 0) + 1
    return most_frequent(counts)


def most_frequent(counts: dict[tuple[str, str], int]) -> list[SeenValue]:
    """The most frequent values of each path."""
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
    values: list[SeenValue] = []
    for (path, value), number in ordered:
        if sum(seen.path == path for seen in values) < MAX_LISTED:
            values.append(SeenValue(path=path, value=value, devices=number))
    return values


def consumers_of(claim: ResourceClaim) -> list[str]:
    """The consumers of a claim, each as "pod NAME"."""
    return [f"{each.resource.removesuffix('s')} {each.name}" for each in claim.status.reserved_for]


def newer_elsewhere(fleet: Fleet, candidate: Candidate) -> str:
    """The owner of the slice with the pool's newest generation; "" if that is the device's own node."""
    pool = fleet.inventory.pool(candidate.key.pool_key)
    entries = list(pool.entries) if pool is not None else []
    newest = max((entry.spec.pool.generation for entry in entries), default=0)
    ahead = sorted((each for each in entries if each.spec.pool.generation == newest), key=lambda entry: entry.name)
    own = candidate.spec.node_name
    if not own or any(entry.spec.node_name == own for entry in ahead):
        return ""
    return f"published by slice {ahead[0].name} for {ahead[0].spec.audience}"


def holder(claim: ResourceClaim, devices: int = 1) -> Holder:
    """The claim as a holder of devices."""
    consumers = consumers_of(claim)
    return Holder(claim=str(claim.metadata.key), consumers=consumers[:MAX_LISTED], idle=not consumers, devices=devices)


def taint_seen(fleet: Fleet, candidate: Candidate, taint: TaintIdentity) -> TaintSeen:
    """A taint of a device, with the rule that sets it, if any."""
    # A device under maintenance is published with the taint of its rule, so its own slice may have it too.
    rule = next(
        (
            _name_of(each)
            for each in fleet.inventory.rules_for(candidate.key.pool_key)
            if each.spec.taint.identity == taint
            and each.spec.device_selector is not None
            and each.spec.device_selector.matches(candidate.key)
        ),
        "",
    )
    return TaintSeen(taint=str(taint), rule=rule)


def _name_of(rule: DeviceTaintRule) -> str:
    """The name of the rule, or of the rule that it extends to more of the same hardware."""
    extended = LABEL_EXTENDS in rule.metadata.labels
    return next((owner.name for owner in rule.metadata.owner_references if extended), rule.metadata.name)


def counter_shortage(fleet: Fleet, judge: Judge, view: PoolView, candidate: Candidate) -> Shortage | None:
    """The first counter with too little left for the device; None if there is none."""
    left = judge.left(view)
    for (counter_set, name), (place, taken) in zip(counter_names(candidate), candidate.charges, strict=True):
        if taken > left[place] or left[place] < 0:
            charged = [(each.key, each.charges) for each in view.candidates] + list(view.others)
            takers = sorted(
                (
                    (-dict(charges)[place], key)
                    for key, charges in charged
                    if place in dict(charges) and fleet.state.uses(key)
                ),
            )
            return Shortage(
                name=f"{counter_set}/{name}",
                needed=_text(taken, candidate.device, name),
                left=_text(max(left[place], 0), candidate.device, name),
                total=_text(view.counters[place], candidate.device, name),
                takers=[f"{key.device} ({', '.join(map(str, fleet.holders(key)))})" for _, key in takers[:MAX_LISTED]],
            )
    return None


def capacity_shortage(
    fleet: Fleet, constrained: ConstrainedRequest, candidate: Candidate, name: str, how: str
) -> Shortage:
    """Why a capacity of a device is too small."""
    asked = constrained.request.asked.capacity
    wanted = (asked.requests if asked is not None else {}).get(name, "")
    if how == "lacks" or name not in candidate.device.capacity:
        return Shortage(name=name, needed=wanted, left="0", total="")
    total = candidate.device.capacity[name].value
    if how == "forbids":
        return Shortage(name=name, needed=wanted or total, left="", total=total)
    amounts = constrained.request.amounts(candidate) or {}
    format_ = Quantity.parse(total).format
    left = amount(total) - fleet.state.consumed(candidate.key).get(name, 0)
    takers = [str(key) for key in fleet.holders(candidate.key)]
    needed = str(amounts[name]) if name in amounts else wanted
    return Shortage(
        name=name, needed=needed, left=_quantity(max(left, 0), format_), total=total, takers=takers[:MAX_LISTED]
    )


def _text(nanos: int, device: Device, name: str) -> str:
    """A counter's amount in the format that the device uses."""
    texts = [each.counters[name].value for each in device.consumes_counters if name in each.counters]
    return _quantity(nanos, Quantity.parse(texts[0]).format)


def _quantity(nanos: int, format_: object) -> str:
    whole, rest = divmod(nanos, _BILLION)
    return f"{nanos / _BILLION:g}" if rest else str(Quantity.of(whole, format_))  # type: ignore[arg-type]
