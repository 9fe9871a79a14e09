"""Records a change that the allocator confirmed, and rewrites a claim in one respect."""

from collections.abc import Sequence
from typing import Any, Self

import msgspec

from draco.explanation.findings.node_rules import PlacementObstacle
from draco.explanation.model import ChangeKind, NearestMiss
from draco.explanation.selection import Asked, with_devices
from draco.resources.api.claims import AllocationResult, CelSelector, DeviceSelector, DeviceSubRequest, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import PoolKey


class SuggestedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change with which the claims fit. `miss` is for people; the other fields describe the change itself."""

    miss: NearestMiss
    claims: Sequence[ResourceClaim] = ()
    """All claims, one of them changed."""
    gone: ObjectKey | None = None
    """A deleted claim."""
    taints: Sequence[DeviceTaint] = ()
    """Taints removed from all devices."""
    obstacle: PlacementObstacle | None = None
    """The obstacle removed between pod and node."""
    pool: PoolKey | None = None
    """A pool assumed to be complete."""

    @classmethod
    def of(
        cls,
        kind: ChangeKind,
        text: str,
        node: Node,
        results: Sequence[AllocationResult],
        *,
        claim: str = "",
        expression: str = "",
        names_subject: bool = False,
        **how: Any,
    ) -> Self:
        """A change with which the claims get these results on a node."""
        devices = [f"{each.driver}/{each.pool}/{each.device}" for result in results for each in result.devices.results]
        name = node.metadata.name
        return cls(
            miss=NearestMiss(
                kind=kind,
                text=text,
                node=name,
                devices=devices,
                claim=claim,
                expression=expression,
                names_subject=names_subject,
            ),
            **how,
        )


def with_asked(claims: Sequence[ResourceClaim], claim: ResourceClaim, name: str, asked: Asked) -> list[ResourceClaim]:
    """The claims, with `asked` in the request or alternative `name` of one of them."""
    devices = claim.spec.devices
    requests = []
    for request in devices.requests:
        if isinstance(asked, DeviceSubRequest):
            alternatives = [
                asked if f"{request.name}/{each.name}" == name else each for each in request.first_available
            ]
            requests.append(msgspec.structs.replace(request, first_available=alternatives))
        elif request.name == name:
            requests.append(msgspec.structs.replace(request, exactly=asked))
        else:
            requests.append(request)
    return with_changed(claims, claim, requests=requests)


def with_selector(asked: Asked, index: int, expression: str) -> Asked:
    """The request with another expression in one of its own selectors, or without that selector if it would always be true."""
    selectors = list(asked.selectors)
    if expression == "true":
        del selectors[index]
    else:
        selectors[index] = DeviceSelector(cel=CelSelector(expression=expression))
    return msgspec.structs.replace(asked, selectors=selectors)


def with_changed(claims: Sequence[ResourceClaim], claim: ResourceClaim, **fields: object) -> list[ResourceClaim]:
    """The claims, with other requests or constraints in one of them."""
    return [with_devices(each, **fields) if each is claim else each for each in claims]
