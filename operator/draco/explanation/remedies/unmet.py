"""Requests that no node could meet even if nothing were in use: what an autoscaler or a person would have to add.

Owns the proof, which only counts: no node has as many devices that the request selects, in use, tainted or not. Nodes that have
enough but lack something else are not reported. Names a product or profile only if all selected devices agree, or the selectors
compare it with one string.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from draco.allocation.fleet.fleet import Fleet
from draco.cel.errors import CompileError
from draco.cel.paths import AttributePath
from draco.cel.selector import compile_selector
from draco.explanation.model import UnmetRequest
from draco.explanation.problems.claims import most_on_one_node
from draco.explanation.selection import Selection, count, first_rows, least, selection
from draco.resources.api.claims import DeviceRequest, ResourceClaim
from draco.resources.names import NVIDIA_DRIVER

MOST_ON_A_NODE: Final = 16
"""GPUs: no server has more, so no added node would meet a larger request."""
_LOOKED_AT: Final = 1_000
"""Devices whose product is read."""


def unmet_requests(fleet: Fleet, claims: Sequence[ResourceClaim]) -> list[UnmetRequest]:
    """The requests that no node could meet; of alternatives the first, if none could be met."""
    return [
        found for claim in claims for request in claim.spec.devices.requests for found in _unmet(fleet, claim, request)
    ]


def _unmet(fleet: Fleet, claim: ResourceClaim, request: DeviceRequest) -> Iterator[UnmetRequest]:
    unmet = []
    for name, asked in request.alternatives:
        device_class = fleet.classes.get(asked.device_class_name)
        if device_class is None or getattr(asked, "admin_access", False):
            return
        chain, wanted = selection(fleet, claim, device_class, asked), least(asked)
        broken = any(step.error is not None for step in chain.steps)
        if broken or most_on_one_node(fleet, chain.eligible, wanted) >= wanted:
            return
        profile = _agreed(fleet, chain, "profile")
        if profile or wanted <= MOST_ON_A_NODE:
            unmet.append(
                UnmetRequest(
                    claim=str(claim.metadata.key),
                    request=name,
                    device_class=asked.device_class_name,
                    product=_agreed(fleet, chain, "productName"),
                    profile=profile,
                    count=wanted,
                    published=count(chain.eligible),
                )
            )
    yield from unmet[:1]


def _agreed(fleet: Fleet, chain: Selection, attribute: str) -> str:
    """The common value of all selected devices, or the value that the selectors want if none is selected; "" if not unique."""
    columns = fleet.inventory.columns
    published = {
        str(value.value) if (value := device.attributes.get(attribute)) is not None else ""
        for row in first_rows(chain.eligible, _LOOKED_AT)
        if (device := columns.devices[row]) is not None
    }
    wanted = published or _compared(chain, attribute)
    return next(iter(wanted)) if len(wanted) == 1 else ""


def _compared(chain: Selection, attribute: str) -> set[str]:
    path = AttributePath("attributes", NVIDIA_DRIVER, attribute)
    found: set[str] = set()
    for step in chain.steps:
        try:
            found |= compile_selector(step.ref.expression).compared.get(path, frozenset())
        except CompileError:
            continue
    return found
