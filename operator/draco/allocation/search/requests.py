"""Requests of claims, prepared for a search: class, number of devices, alternatives, and mode "All"'s matching devices.

Anything in a claim that cannot be understood is an error for every node.
"""

from collections.abc import Callable, Mapping, Sequence

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.capacity import is_left, taken
from draco.allocation.fleet.pools import Candidate, PoolView, is_device_for
from draco.allocation.fleet.selectors import Selectors
from draco.allocation.search.constraints import Constraint, constraints_of
from draco.cel.errors import CompileError, EvaluationError
from draco.resources.api.claims import (
    MAX_RESULTS,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
)
from draco.resources.api.core import Node
from draco.resources.quantity import Quantity


class Request:
    """One request or alternative, with cached results of one search. Alternatives share the request's own name, `base`."""

    def __init__(
        self,
        *,
        claim: ResourceClaim,
        base: str,
        asked: ExactDeviceRequest | DeviceSubRequest,
        device_class: DeviceClass,
        match: "Matcher",
    ) -> None:
        own = asked.name if isinstance(asked, DeviceSubRequest) else base
        self.base = base
        self.name = f"{base}/{own}" if isinstance(asked, DeviceSubRequest) else base
        self.label = f"claim {claim.metadata.key}, request {own}"
        self.asked = asked
        self.device_class = device_class
        self.admin_access = isinstance(asked, ExactDeviceRequest) and bool(asked.admin_access)
        self.all_devices: list[Candidate] | None = None
        self.count = asked.count or 1
        self._claim = claim
        self._match = match
        self._selected: dict[int, bool] = {}
        self._amounts: dict[int, dict[str, Quantity] | None] = {}

    def selects(self, candidate: Candidate) -> bool:
        """Whether class and request select the device and it is for the node. Raises AllocationError."""
        selected = self._selected.get(candidate.row)
        if selected is None:
            selected = self._selected[candidate.row] = self._match(self, candidate)
        return selected

    def amounts(self, candidate: Candidate) -> dict[str, Quantity] | None:
        """What it consumes of the device's capacities (see `capacity.taken`). Raises AllocationError."""
        try:
            return self._amounts[candidate.row]
        except KeyError:
            pass
        try:
            found = taken(self.asked.capacity, candidate.device)
        except AllocationError as error:
            raise AllocationError(f"{self.label}: checking capacity for device {candidate.key}: {error}") from None
        self._amounts[candidate.row] = found
        return found

    def tolerates(self, candidate: Candidate) -> bool:
        """Whether it tolerates every blocking taint."""
        return all(any(each.tolerates(taint) for each in self.asked.tolerations) for taint in candidate.taints)

    @property
    def selectors(self) -> Sequence[tuple[str, int, DeviceSelector]]:
        """The class's selectors, then its own, each with its owner and index."""
        own = f"claim {self._claim.metadata.key}"
        return [
            *(
                (f"class {self.device_class.metadata.name}", *each)
                for each in enumerate(self.device_class.spec.selectors)
            ),
            *((own, *each) for each in enumerate(self.asked.selectors)),
        ]


Matcher = Callable[[Request, Candidate], bool]


def matcher(selectors: Selectors, node: Node) -> Matcher:
    """Return a test whether a request selects a device on the node; its errors name the selector and the device."""

    def matches(request: Request, candidate: Candidate) -> bool:
        for whose, index, selector in request.selectors:
            expression = selector.cel.expression if selector.cel is not None else ""
            try:
                if not selectors.matches(expression, candidate.key.driver, candidate.device, candidate.row):
                    return False
            except CompileError as error:
                raise AllocationError(f"{whose}: selector #{index}: CEL compile error: {error}") from error
            except EvaluationError as error:
                raise AllocationError(
                    f"{whose}: selector #{index} on device {candidate.key}: CEL runtime error: {_with_advice(error)}"
                ) from error
        return not candidate.spec.per_device_node_selection or is_device_for(candidate.device, node)

    return matches


def _with_advice(error: EvaluationError) -> str:
    advice = ""
    if "no such key:" in str(error):
        advice = (
            ". consider using CEL optional chaining (.? followed by orValue()) "
            "or guarding the check with has() for optional fields"
        )
    return f"{error}{advice}"


class ExpandedClaim:
    """A claim with its requests, each a list of one or more alternatives, and its constraints."""

    def __init__(self, claim: ResourceClaim, requests: list[list[Request]], constraints: list[Constraint]) -> None:
        self.claim = claim
        self.requests = requests
        self.constraints = constraints


def expand(
    claim: ResourceClaim, classes: Mapping[str, DeviceClass], views: Sequence[PoolView], match: Matcher
) -> ExpandedClaim:
    """Read a claim. Raises AllocationError if it cannot be understood or needs too many devices for one claim."""
    requests: list[list[Request]] = []
    least = 0
    for asked in claim.spec.devices.requests:
        alternatives = []
        for each in _alternatives(claim, asked):
            request = _request(claim, asked, each, classes, match)
            if each.allocation_mode == "All":
                request.all_devices = _all(request, views)
                request.count = len(request.all_devices)
            alternatives.append(request)
        requests.append(alternatives)
        fewest = min(each.count for each in alternatives)
        if fewest > MAX_RESULTS - least:
            raise AllocationError(
                f"claim {claim.metadata.key}, request {asked.name}: adding {fewest} devices exceeds the claim limit of "
                f"{MAX_RESULTS}, with {least} already accounted for"
            )
        least += fewest
    constraints = constraints_of(str(claim.metadata.key), claim.spec.devices.constraints)
    return ExpandedClaim(claim, requests, constraints)


def _alternatives(claim: ResourceClaim, asked: DeviceRequest) -> Sequence[ExactDeviceRequest | DeviceSubRequest]:
    if asked.first_available:
        return asked.first_available
    if asked.exactly is None:
        raise AllocationError(
            f"claim {claim.metadata.key}, request {asked.name}: asks for nothing (unsupported request type?)"
        )
    return [asked.exactly]


def _request(
    claim: ResourceClaim,
    parent: DeviceRequest,
    asked: ExactDeviceRequest | DeviceSubRequest,
    classes: Mapping[str, DeviceClass],
    match: Matcher,
) -> Request:
    own = asked.name if isinstance(asked, DeviceSubRequest) else parent.name
    label = f"claim {claim.metadata.key}, request {own}"
    for index, selector in enumerate(asked.selectors):
        if selector.cel is None:
            raise AllocationError(f"{label}, selector #{index}: CEL expression empty (unsupported selector type?)")
    if not asked.device_class_name:
        raise AllocationError(f"{label}: missing device class name (unsupported request type?)")
    device_class = classes.get(asked.device_class_name)
    if device_class is None:
        raise AllocationError(f"{label}: could not retrieve device class {asked.device_class_name}: it does not exist")
    if asked.allocation_mode not in {"All", "ExactCount", ""}:
        raise AllocationError(f"{label}: unsupported count mode {asked.allocation_mode}")
    return Request(claim=claim, base=parent.name, asked=asked, device_class=device_class, match=match)


def _all(request: Request, views: Sequence[PoolView]) -> list[Candidate]:
    """Every device on the node that the request selects and whose total capacity suffices."""
    found = []
    for view in views:
        if view.incomplete:
            raise AllocationError(
                f"{request.label}: asks for all devices, but resource pool {view.key} is currently being updated"
            )
        if view.invalid:
            raise AllocationError(
                f"{request.label}: asks for all devices, but resource pool {view.key} is currently invalid: {view.invalid}"
            )
        for candidate in view.candidates:
            if request.selects(candidate):
                amounts = request.amounts(candidate)
                if amounts is not None and is_left(amounts, candidate.device):
                    found.append(candidate)
    return found
