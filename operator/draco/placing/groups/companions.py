"""Where claims of Draco's go whose pod has other claims, too, that kube-scheduler allocates: where there are devices for all.

Owns foreseeing these, which are the first that fit on the node, as `allocate` finds them, and keeping Draco's devices near them.
The node is chosen by what Draco allocates alone, as long as the others fit there. Evaluates what tenants write.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.search.allocate import allocate
from draco.placing.groups.group import allocated
from draco.placing.scoring.ranking import ALONE, Company
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node

_MAX_STEPS: Final = 50_000
"""Of `allocate`, for the others on one node."""


class Placed(Protocol):
    """Devices of one node."""

    @property
    def node(self) -> str:
        """The node's name."""

    @property
    def results(self) -> list[AllocationResult]:
        """One for each claim."""


P = TypeVar("P", bound=Placed)
P_co = TypeVar("P_co", bound=Placed, covariant=True)


class Placer(Protocol[P_co]):
    """Chooses a node and its devices, and keeps count of what has been chosen."""

    def best(
        self,
        claims: Sequence[ResourceClaim],
        nodes: Mapping[str, Node],
        *,
        beside: Sequence[ResourceClaim] = (),
        company: Company = ALONE,
    ) -> P_co | None:
        """Where claims go that belong on one node, near what the pod has already (`beside`), and to the rest of their group.

        Raises AllocationError.
        """

    def put(self, claim: ResourceClaim) -> None:
        """Count the claim as it now is."""


class Together(NamedTuple, Generic[P]):
    """The place, if there is one, and what the others are to get there. `others_lack`: only for these there is nothing."""

    place: P | None
    foreseen: Sequence[AllocationResult] = ()
    others_lack: bool = False


def best_together(
    fleet: Fleet,
    placer: Placer[P],
    claims: Sequence[ResourceClaim],
    nodes: Mapping[str, Node],
    *,
    beside: Sequence[ResourceClaim] = (),
    others: Sequence[ResourceClaim] = (),
    company: Company = ALONE,
) -> Together[P]:
    """The best place on a node where kube-scheduler will find devices for the `others`, and near to those.

    Raises AllocationError, also where the others cannot be searched for and nothing fits.
    """
    found = placer.best(claims, nodes, beside=beside, company=company)
    if found is None or not others:
        return Together(found)
    left, failure = dict(nodes), None
    while found is not None:
        node = left.pop(found.node)
        try:
            foreseen = _foreseen(fleet, node, others)
        except AllocationError as error:
            foreseen, failure = None, failure or error
        if foreseen is not None:
            known = [allocated(claim, result) for claim, result in zip(others, foreseen, strict=True)]
            near = placer.best(claims, {found.node: node}, beside=[*beside, *known])
            return Together(near or found, foreseen)
        found = placer.best(claims, left, beside=beside, company=company)
    if failure is not None:
        raise failure
    return Together(None, others_lack=True)


def _foreseen(fleet: Fleet, node: Node, others: Sequence[ResourceClaim]) -> list[AllocationResult] | None:
    return allocate(
        fleet.inventory, fleet.state, node, others, fleet.classes,
        share_ids=iter(lambda: "", None), max_steps=_MAX_STEPS,
    )  # fmt: skip
