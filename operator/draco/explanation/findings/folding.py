"""Folds findings into counts that people can read, with representative selectors, values, holders, taints and shortages."""

from collections import Counter
from typing import Any, Final

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.rowwise import combine, number
from draco.explanation.findings.details import (
    MAX_LISTED,
    DeviceDetails,
    holder,
    most_frequent,
    newer_elsewhere,
    paths_of,
    selector_ref,
    value_of,
    values_seen,
)
from draco.explanation.findings.equivalence import outcome
from draco.explanation.findings.fleet_findings import FindingCounts, FleetFindings
from draco.explanation.findings.verdicts import ConstrainedRequest, DeviceFinding
from draco.explanation.model import Cause, CauseCount, Holder, RequestExplanation, SeenValue
from draco.explanation.wording import cause_text
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey
from draco.selectors.accesses import path_text

USEFUL: Final = (
    Cause.SELECTOR_FAILED,
    Cause.IN_USE,
    Cause.TAINTED,
    Cause.COUNTERS_SHORT,
    Cause.CAPACITY_SHORT,
    Cause.CONSTRAINT,
    Cause.NODE_RULES,
    Cause.POOL_INCOMPLETE,
    Cause.POOL_INVALID,
    Cause.POOL_OBSOLETE,
    Cause.NO_NODE,
    Cause.CONFIGURATION_REFUSED,
    Cause.NOT_SELECTED,
    Cause.FREE,
)
"""The order in which causes are listed: the closest to fitting first."""
_MANY_VALUES: Final = 256


def folded(fleet: Fleet, found: FleetFindings) -> list[RequestExplanation]:
    """Each request with its counts."""
    return [_Folding(fleet, found, place, constrained).request() for place, constrained in enumerate(found.requests)]


class _Folding:
    def __init__(self, fleet: Fleet, found: FleetFindings, place: int, constrained: ConstrainedRequest) -> None:
        self._fleet = fleet
        self._found = found
        self._place = place
        self._constrained = constrained
        self._of_one = DeviceDetails(fleet)

    def request(self) -> RequestExplanation:
        found, constrained, findings = self._found, self._constrained, self._found.counts[self._place]
        counts = [self._count(finding, totals) for finding, totals in findings.items()]
        most, best = max(((group.free[self._place], group.names[0]) for group in found.groups), default=(0, ""))
        return RequestExplanation(
            claim=str(constrained.claim.metadata.key),
            request=constrained.request.name,
            device_class=constrained.request.asked.device_class_name,
            mode=constrained.request.asked.allocation_mode or "ExactCount",
            wanted=constrained.wanted,
            admin_access=constrained.request.admin_access,
            devices=found.devices,
            causes=sorted(counts, key=self._usefulness),
            free=sum(totals.devices for finding, totals in findings.items() if finding.cause is Cause.FREE),
            most_free_on_one_node=most,
            best_node=best if most else "",
        )

    @staticmethod
    def _usefulness(count: CauseCount) -> tuple[int, bool, int]:
        of_class = count.selector is not None and bool(count.selector.class_name)
        return USEFUL.index(count.cause), of_class, -count.devices

    def _count(self, finding: DeviceFinding, totals: FindingCounts) -> CauseCount:
        count = CauseCount(
            cause=finding.cause,
            devices=totals.devices,
            nodes=totals.nodes,
            text="",
            example=str(totals.examples[0][1].key),
            node_names=totals.names(MAX_LISTED),
            **self._details(finding, totals),
        )
        return msgspec.structs.replace(count, text=cause_text(count))

    def _details(self, finding: DeviceFinding, totals: FindingCounts) -> dict[str, Any]:
        constrained = self._constrained
        view, first = totals.examples[0]
        match finding:
            case DeviceFinding(Cause.NOT_SELECTED, int(place)):
                selector = selector_ref(constrained, place)
                details: dict[str, Any] = {"selector": selector, "values": self._values(place, totals)}
            case DeviceFinding(Cause.IN_USE):
                capacity = constrained.request.asked.capacity
                asks_share = capacity is not None and bool(capacity.requests)
                dedicated = asks_share and not first.device.allow_multiple_allocations
                details = {**self._holders(totals), "dedicated": dedicated}
            case DeviceFinding(Cause.CONSTRAINT, str(attribute)):
                details = {"constraint": attribute}
            case DeviceFinding(Cause.POOL_INCOMPLETE | Cause.POOL_INVALID | Cause.POOL_OBSOLETE):
                pools = {f"{each.key.driver}/{each.key.pool}" for _, each in totals.examples}
                details = {"pools": sorted(pools)[:MAX_LISTED]}
                if finding.cause is Cause.POOL_OBSOLETE:
                    details["newer"] = newer_elsewhere(self._fleet, first)
            case _:
                details = self._of_one.of(constrained, view, first, finding)
        return details

    def _holders(self, totals: FindingCounts) -> dict[str, Any]:
        """The holders of the devices; claims that nobody uses come first."""
        fleet, inventory = self._fleet, self._fleet.inventory
        plain = set(totals.rows)
        candidates = [each.key for _, each in totals.examples if each.row not in plain]
        keys = Counter(key for device in candidates for key in fleet.holders(device))
        for row in totals.rows:
            entry, device = inventory.entry(row), inventory.columns.devices[row]
            if device is not None:
                keys.update(fleet.holders(DeviceKey(entry.spec.driver, entry.spec.pool.name, device.name)))
        known = sum(keys.values()) >= totals.devices
        ordered = sorted(keys.items(), key=lambda item: (item[0] not in fleet.idle, -item[1], item[0]))
        holders = [self._holder(key, count) for key, count in ordered[:MAX_LISTED]]
        return {"holders": holders, "holders_total": len(keys) if known else 0}

    def _holder(self, key: ObjectKey, count: int) -> Holder:
        claim = self._fleet.claims.get(key)
        return Holder(claim=str(key), devices=count) if claim is None else holder(claim, count)

    def _values(self, place: int, totals: FindingCounts) -> list[SeenValue]:
        """The values for which a selector is false: over all devices if that is cheap, else over some."""
        expression = selector_ref(self._constrained, place).expression
        paths = paths_of(expression)
        columns = self._fleet.inventory.columns
        unmet = outcome(place, failed=False)
        mask = self._found.classes.outcomes[self._place].translate(bytes(each == unmet for each in range(256)))
        counts: dict[tuple[str, str], int] = {}
        for path in paths:
            column = columns.get(path)
            if column is None:
                counts[path_text(path), ""] = totals.devices
                continue
            if column.distinct() > _MANY_VALUES:
                seen = values_seen((each for _, each in totals.examples), expression)
                counts.update({(each.path, each.value): each.devices for each in seen if each.path == path_text(path)})
                continue
            combined = combine([number(mask, (0, 1)), column.numbered()])
            for row, count in zip(combined.rows, combined.counts(), strict=True):
                device = columns.devices[row]
                if mask[row] and device is not None:
                    key = (path_text(path), value_of(columns.drivers[row], device, path))
                    counts[key] = counts.get(key, 0) + count
        return most_frequent(counts)
