"""Says where Draco would place claims, the second-best place, and why that one lost. Treats allocated claims as waiting."""

from collections.abc import Collection, Sequence
from itertools import repeat

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.ownership.claims import as_searched, is_for_operator
from draco.allocation.ownership.gangs import gang_of
from draco.explanation.findings.allocated import reaching
from draco.explanation.findings.node_rules import nodes_for
from draco.placing.groups.gang_search import best_together
from draco.placing.groups.group import allocated
from draco.placing.search.best import BestPlacement, BestPlacer
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.errors import DracoError
from draco.resources.names import PoolKey


def placement_lines(
    fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None = None, *, spread: Collection[PoolKey] = ()
) -> list[str]:
    """One or two lines for claims of one pod, or one claim; none if no claim is Draco's or there is no place.

    Nodes of the pools in `spread` are filled evenly.
    """
    ours = [claim for claim in claims if is_for_operator(claim, fleet.classes)]
    waiting = [claim for claim in ours if claim.status.allocation is None]
    concerned = waiting or ours
    if not concerned:
        return []
    beside = [claim for claim in claims if claim.status.allocation is not None and claim not in concerned]
    others = [claim for claim in claims if claim.status.allocation is None and claim not in concerned]
    bare = [allocated(claim, None) for claim in concerned]
    try:
        with BestPlacer(fleet, share_ids=repeat("")).as_if(spread=spread) as placer:
            for claim in bare:
                placer.put(claim)
            nodes = reaching(beside, nodes_for(fleet, pod).open)
            searched = [as_searched(claim, fleet.classes) for claim in bare]
            found = best_together(placer, searched, nodes, beside=beside, others=others).place
    except DracoError:
        return []
    if found is None:
        return []
    in_group = pod is not None and gang_of(pod) is not None
    return [_chosen(found, waiting, ours, in_group=in_group), *_runner_up(found)]


def _chosen(
    found: BestPlacement, waiting: Sequence[ResourceClaim], ours: Sequence[ResourceClaim], *, in_group: bool
) -> str:
    if in_group:  # the group's other pods also influence the place
        return f"If it were not in a group, Draco would place it now: {found}."
    if waiting:
        return f"Draco would place it now: {found}."
    held = [(each.pool, each.device) for claim in ours for each in claim.results]
    chosen = [(each.pool, each.device) for result in found.results for each in result.devices.results]
    if sorted(held) == sorted(chosen):
        return f"Now Draco would choose the same place again: {found}."
    return f"The cluster has changed since then; now Draco would choose: {found}."


def _runner_up(found: BestPlacement) -> list[str]:
    if found.runner_up is None:
        return ["There is no other place for it."]
    return [f"The next best is {found.runner_up}"]
