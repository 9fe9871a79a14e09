"""Rules about requests: names, modes, counts, and what constraints and configuration refer to.

Owns what a request must and must not have. Source: validation of resource.k8s.io/v1.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from draco.linting.model import DropField, Edit, Finding, Manifest, MoveField, SetField, TreePath
from draco.linting.names import ALIKE
from draco.linting.objects import (
    WrittenClaim,
    WrittenRequest,
    claims,
    listed,
    mapping,
    request_names,
    requests,
    text,
    wanted,
)
from draco.resources.texts import most_like

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MODES: Final = ("ExactCount", "All")
_MEANT_MODES: Final = {"exact": "ExactCount", "count": "ExactCount", "single": "ExactCount"}
_MOST_DEVICES: Final = 32


def check_requests(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Check each request by itself."""
    for claim in claims(manifests):
        names = Counter(text(request.fields.get("name")) for request in requests(claim))
        if "devices" in _spec(manifests, claim) and not listed(claim.devices.get("requests")):
            message = "the claim asks for nothing: spec.devices.requests needs at least one request"
            yield _found("request-missing", message, claim, claim.path)
        for number, request in enumerate(requests(claim)):
            yield from _name(claim, request, number, names)
            if "firstAvailable" in request.fields and "exactly" in request.fields:
                message = "a request has `exactly` or firstAvailable, not both"
                yield _found("request-form", message, claim, request.path)
            asked = list(wanted(request))
            if not asked:
                message = "the request asks for nothing: it needs `exactly` with a deviceClassName, or firstAvailable"
                yield _found("request-form", message, claim, request.path)
            for one in asked:
                yield from _amount(claim, one)


def _spec(manifests: Sequence[Manifest], claim: WrittenClaim) -> dict[str, Any]:
    tree: Any = manifests[claim.manifest].tree
    for step in claim.path[:-1]:
        tree = mapping(tree).get(str(step))
    return mapping(tree)


def _name(claim: WrittenClaim, request: WrittenRequest, number: int, names: Counter[str]) -> Iterator[Finding]:
    name = request.fields.get("name")
    path = (*request.path, "name")
    if not name:
        new = "device" if number == 0 else f"device-{number}"
        yield _found("request-name", "the request has no name", claim, request.path, SetField(path, new))
    elif not _LABEL.fullmatch(text(name)):
        message = f"{name} cannot name a request: use at most 63 lower-case letters, digits and '-'"
        yield _found("request-name", message, claim, path)
    elif names[text(name)] > 1:
        yield _found("request-name", f"{names[text(name)]} requests of this claim are called {name}", claim, path)


def _amount(claim: WrittenClaim, asked: WrittenRequest) -> Iterator[Finding]:
    fields = asked.fields
    mode, count = fields.get("allocationMode"), fields.get("count")
    if not text(fields.get("deviceClassName")):
        yield _found("request-class", "the request names no deviceClassName", claim, asked.path)
    if mode is not None and mode not in _MODES:
        likely = _MEANT_MODES.get(text(mode).lower()) or most_like(text(mode), _MODES, at_least=ALIKE)
        edits: list[Edit] = [SetField((*asked.path, "allocationMode"), likely)] if likely else []
        message = f"there is no allocationMode {mode}: it is ExactCount (the default) or All"
        yield _found("allocation-mode", message, claim, (*asked.path, "allocationMode"), *edits)
    if mode == "All" and count is not None:
        path = (*asked.path, "count")
        yield _found(
            "count-with-all",
            "allocationMode All takes every device, so it has no count",
            claim,
            path,
            DropField(path),
        )
    elif isinstance(count, int) and not isinstance(count, bool) and not 0 < count <= _MOST_DEVICES:
        message = f"count is {count}: a claim gets from 1 to {_MOST_DEVICES} devices"
        yield _found("count", message, claim, (*asked.path, "count"))
    elif count is not None and (not isinstance(count, int) or isinstance(count, bool)):
        path = (*asked.path, "count")
        edits = [SetField(path, int(count))] if isinstance(count, str) and count.isdecimal() and len(count) < 3 else []
        yield _found("count", "count must be a number, without quotes", claim, path, *edits)
    if "firstAvailable" in asked.path and "adminAccess" in fields:
        path = (*asked.path, "adminAccess")
        message = "an alternative of a prioritized list cannot ask for adminAccess"
        yield _found("admin-access", message, claim, path, DropField(path))
    for number, selector in enumerate(listed(fields.get("selectors"))):
        path = (*asked.path, "selectors", number)
        if isinstance(selector, dict) and "cel" not in selector and "expression" in selector:
            move = MoveField((*path, "expression"), (*path, "cel", "expression"))
            yield _found("selector-form", "a selector must have its expression under `cel`", claim, path, move)
        elif isinstance(selector, str):
            put = SetField(path, {"cel": {"expression": selector}})
            yield _found("selector-form", "a selector must have its expression under `cel`", claim, path, put)
        elif isinstance(cel := mapping(selector).get("cel"), str):
            put = SetField((*path, "cel"), {"expression": cel})
            yield _found("selector-form", "`cel` must contain an `expression`", claim, (*path, "cel"), put)


def check_references_to_requests(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Constraints and configuration name requests of their claim."""
    for claim in claims(manifests):
        names = request_names(claim)
        for field in ("constraints", "config"):
            for number, entry in enumerate(listed(claim.devices.get(field))):
                for place, name in enumerate(listed(mapping(entry).get("requests"))):
                    if name in names:
                        continue
                    path: TreePath = (*claim.path, field, number, "requests", place)
                    likely = most_like(text(name), names, at_least=ALIKE)
                    edits = [SetField(path, likely)] if likely else []
                    message = f"{name} is not a request of this claim{_these(names)}"
                    yield _found("request-unknown", message, claim, path, *edits)


def _these(names: Sequence[str]) -> str:
    return f": it has {', '.join(names)}" if names else ""


def _found(rule: str, message: str, claim: WrittenClaim, path: TreePath, *edits: Edit) -> Finding:
    return Finding(rule, "error", message, claim.manifest, path, tuple((claim.manifest, edit) for edit in edits))
