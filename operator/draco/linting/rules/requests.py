"""Rules about requests: correctable mistakes, and requests that no claim can get. Source: validation of resource.k8s.io/v1."""

from collections.abc import Iterator, Sequence
from typing import Final

from draco.linting import objects
from draco.linting.model import DropField, Edit, Finding, Json, Manifest, MoveField, SetField, TreePath, finding
from draco.resources.api.claims import MAX_RESULTS
from draco.resources.quantity import Quantity
from draco.resources.texts import counted, slip_of

_LEAST_MEMORY: Final = Quantity.of(1 << 20)
"""What is less was meant in another unit."""
_MEMORY: Final = "memory"
_SHARES: Final = "shares"
_MODES: Final = ("ExactCount", "All")
_ADMIN_ACCESS: Final = "resource.kubernetes.io/admin-access"
_PERMITTED: Final = {_ADMIN_ACCESS: "true"}
_MEANT_MODES: Final = {"exact": "ExactCount", "count": "ExactCount", "single": "ExactCount"}


def check_requests(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Check each request individually."""
    for claim in objects.claims(manifests):
        if "devices" in objects.mapping(
            objects.at(manifests[claim.manifest].tree, claim.path[:-1])
        ) and not objects.listed(claim.devices.get("requests")):
            message = "the claim asks for nothing: spec.devices.requests needs at least one request"
            yield finding("request-missing", message, claim.manifest, claim.path)
        yield from _together(claim)
        for number, request in enumerate(objects.requests(claim)):
            if not request.fields.get("name"):
                new = "device" if number == 0 else f"device-{number}"
                put = SetField((*request.path, "name"), new)
                yield finding("request-name", "the request has no name", claim.manifest, request.path, put)
            yield from _alternatives(claim, request)
            for one in objects.wanted(request):
                yield from _amount(claim, one)


def _alternatives(claim: objects.WrittenClaim, request: objects.WrittenRequest) -> Iterator[Finding]:
    """Alternatives of a prioritized list need names, too."""
    found = [
        (number, each)
        for number, each in enumerate(objects.listed(request.fields.get("firstAvailable")))
        if isinstance(each, dict)
    ]
    taken = {each.get("name") for _, each in found}
    for number, each in found:
        if not each.get("name"):
            path: TreePath = (*request.path, "firstAvailable", number)
            new = next(name for start in range(number, 99) if (name := f"choice-{start}") not in taken)
            taken.add(new)
            message = "the alternative has no name"
            yield finding("request-name", message, claim.manifest, path, SetField((*path, "name"), new))


def _together(claim: objects.WrittenClaim) -> Iterator[Finding]:
    """Requests that each stay below a claim's maximum of devices, but exceed it together."""
    fewest = []
    for request in objects.requests(claim):
        asked = [each.fields for each in objects.wanted(request)]
        counts = [0 if each.get("allocationMode") == "All" else each.get("count", 1) for each in asked]
        fewest.append(min((count for count in counts if isinstance(count, int)), default=0))
    if max(fewest, default=0) <= MAX_RESULTS < sum(fewest):
        message = (
            f"the requests want {sum(fewest)} devices, and a claim gets no more than {MAX_RESULTS}: use several claims"
        )
        yield finding("count", message, claim.manifest, (*claim.path, "requests"))


def _amount(claim: objects.WrittenClaim, asked: objects.WrittenRequest) -> Iterator[Finding]:
    fields = asked.fields
    mode, count = fields.get("allocationMode"), fields.get("count")
    if mode is not None and mode not in _MODES:
        likely = _MEANT_MODES.get(objects.text(mode).lower()) or slip_of(objects.text(mode), _MODES)
        edits: list[Edit] = [SetField((*asked.path, "allocationMode"), likely)] if likely else []
        message = f"there is no allocationMode {mode}: it is ExactCount (the default) or All"
        yield finding("allocation-mode", message, claim.manifest, (*asked.path, "allocationMode"), *edits)
    if mode == "All" and count is not None:
        path = (*asked.path, "count")
        message = "allocationMode All takes every device, so it has no count: leave one of the two out"
        yield finding("count-with-all", message, claim.manifest, path)
    elif isinstance(count, int) and not isinstance(count, bool) and not 0 < count <= MAX_RESULTS:
        message = f"count is {count}: a claim gets from 1 to {MAX_RESULTS} devices"
        yield finding("count", message, claim.manifest, (*asked.path, "count"))
    elif count is not None and (not isinstance(count, int) or isinstance(count, bool)):
        path = (*asked.path, "count")
        edits = [SetField(path, int(count))] if isinstance(count, str) and count.isdecimal() and len(count) < 3 else []
        yield finding("count", "count must be a number, without quotes", claim.manifest, path, *edits)
    yield from _capacities(claim, asked)
    if "firstAvailable" in asked.path and "adminAccess" in fields:
        path = (*asked.path, "adminAccess")
        message = "an alternative of a prioritized list cannot ask for adminAccess: make a request of its own for it"
        edits = [] if fields["adminAccess"] else [DropField(path)]
        yield finding("admin-access", message, claim.manifest, path, *edits)
    for number, selector in enumerate(objects.listed(fields.get("selectors"))):
        path = (*asked.path, "selectors", number)
        if isinstance(selector, dict) and "cel" not in selector and "expression" in selector:
            move = MoveField((*path, "expression"), (*path, "cel", "expression"))
            yield finding(
                "selector-form", "a selector must have its expression under `cel`", claim.manifest, path, move
            )
        elif isinstance(selector, str):
            put = SetField(path, {"cel": {"expression": selector}})
            yield finding("selector-form", "a selector must have its expression under `cel`", claim.manifest, path, put)
        elif isinstance(cel := objects.mapping(selector).get("cel"), str):
            put = SetField((*path, "cel"), {"expression": cel})
            yield finding("selector-form", "`cel` must contain an `expression`", claim.manifest, (*path, "cel"), put)


def _capacities(claim: objects.WrittenClaim, asked: objects.WrittenRequest) -> Iterator[Finding]:
    """Amounts that the API server takes, and that nobody means: Kubernetes rounds them up to the least that a device gives."""
    for name, written in objects.mapping(objects.mapping(asked.fields.get("capacity")).get("requests")).items():
        amount = None if isinstance(written, bool) else Quantity.read(str(written))
        if amount is None:
            continue
        said, short = f"the request asks for {written} of {name}", name.rpartition("/")[2]
        if amount.sign() <= 0:
            why = f"{said}, and gets the least that a device gives: write the amount that it needs, or leave it out"
        elif short == _MEMORY and amount < _LEAST_MEMORY:
            why = f"{said}, which is {counted(amount.value(), 'byte')}: write a unit, such as Gi or Mi"
        elif short == _SHARES and amount.nanos % 10**9:
            why = f"{said}, and shares are whole: Kubernetes rounds up, so write {amount.value()}"
        else:
            continue
        path = (*asked.path, "capacity", "requests", name)
        yield finding("capacity-amount", why, claim.manifest, path, severity="warning")


def check_admin_access(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Admin access needs a namespace whose label permits it; checked only if the Namespace is among the manifests."""
    labels = {
        objects.name_of(each.tree): objects.mapping(objects.mapping(each.tree.get("metadata")).get("labels"))
        for each in manifests
        if objects.kind_of(each) == "Namespace"
    }
    for claim in objects.claims(manifests):
        here = labels.get(claim.namespace, _PERMITTED)
        if here.get(_ADMIN_ACCESS) == "true":
            continue
        message = f"namespace {claim.namespace} does not permit adminAccess: {_missing_label(here)}"
        for asked in objects.asked_of(claim):
            if asked.fields.get("adminAccess") is True:
                yield finding("admin-access", message, claim.manifest, (*asked.path, "adminAccess"))


def _missing_label(labels: Json) -> str:
    """How the namespace gets the label that permits admin access."""
    if labels.get(_ADMIN_ACCESS) is True:
        return f'a label is a string, so write {_ADMIN_ACCESS}: "true" with the quotes'
    near = next((key for key in labels if str(key).endswith("/admin-access") and key != _ADMIN_ACCESS), "")
    instead = f"; {near} has no effect" if near else ""
    return f"its administrator labels it {_ADMIN_ACCESS}=true{instead}"


def check_references_to_requests(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Constraints and configurations name requests of their claim."""
    for claim in objects.claims(manifests):
        names = objects.request_names(claim)
        for field in ("constraints", "config"):
            for number, entry in enumerate(objects.listed(claim.devices.get(field))):
                for place, name in enumerate(objects.listed(objects.mapping(entry).get("requests"))):
                    if name in names:
                        continue
                    path: TreePath = (*claim.path, field, number, "requests", place)
                    if likely := slip_of(objects.text(name), names):
                        message = f"{name} is not a request of this claim: the nearest is {likely}"
                        yield finding("request-unknown", message, claim.manifest, path, SetField(path, likely))
