"""Gang search: finds devices for enough members of a group to start, or for none. Must run in a worker.

Owns the order in which members and topology domains are tried, and backtracking. Members are placed one after another, the
largest first; the next attempt begins with members that found nothing, so that unlike members do not take each other's only
devices. Also foresees what kube-scheduler will allocate to other claims of a member's pod (the first fit on the node, as
`allocate` finds it) and keeps Draco's devices near. Only Draco's claims choose the node, if the others fit there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.rowwise import unpacked
from draco.allocation.ownership.claims import as_allocated, as_searched, nodes_of
from draco.allocation.search.allocate import would_get
from draco.explanation.findings.allocated import reaching
from draco.explanation.findings.node_rules import nodes_for
from draco.placing.groups.group import ClaimGroup, GroupMember, allocated
from draco.placing.groups.topology import SPREAD, domains_of
from draco.placing.scoring.score import ALONE, RestOfGroup
from draco.placing.search.best import BestPlacement, BestPlacer
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey

_MAX_STEPS: Final = 50_000
"""Limit of `allocate` for the other claims on one node."""


class PodPlacement(NamedTuple):
    """The place, if any, and the foreseen results of the others. `others_lack`: only the others found no devices."""

    place: BestPlacement | None
    foreseen: Sequence[AllocationResult] = ()
    others_lack: bool = False


def best_together(
    placer: BestPlacer,
    claims: Sequence[ResourceClaim],
    nodes: Mapping[str, Node],
    *,
    beside: Sequence[ResourceClaim] = (),
    others: Sequence[ResourceClaim] = (),
    rest: RestOfGroup = ALONE,
) -> PodPlacement:
    """The best place where the `others` fit too, near those. Raises AllocationError, also of the search for the others."""
    found = placer.best(claims, nodes, beside=beside, rest=rest)
    if found is None or not others:
        return PodPlacement(found)
    left, failure = dict(nodes), None
    while found is not None:
        node = left.pop(found.node)
        try:
            foreseen = would_get(placer.fleet, node, others, max_steps=_MAX_STEPS)
        except AllocationError as error:
            foreseen, failure = None, failure or error
        if foreseen is not None:
            known = [allocated(claim, result) for claim, result in zip(others, foreseen, strict=True)]
            near = placer.best(claims, {found.node: node}, beside=[*beside, *known])
            return PodPlacement(near or found, foreseen)
        found = placer.best(claims, left, beside=beside, rest=rest)
    if failure is not None:
        raise failure
    return PodPlacement(None, others_lack=True)


ATTEMPTS: Final = 4
"""Orders of the members to try in one domain."""


class GroupFit(NamedTuple):
    """The result of a search: results of each member (empty without a place), and the number of placed members."""

    results: list[list[AllocationResult]]
    """Of a member's claims, then the foreseen ones of its others."""
    found: int
    nodes: int
    """Number of nodes the group may use."""
    lacking: Sequence[ResourceClaim] = ()
    """Claims of others without devices, of a member that found Draco's devices."""

    def tells_more_than(self, other: "GroupFit") -> bool:
        """Whether it placed more members, or as many and names what is lacking."""
        return (self.found, bool(self.lacking)) > (other.found, bool(other.lacking))


class _Asked(NamedTuple):
    claims: list[ResourceClaim]
    nodes: Mapping[str, Node]


class GangSearch:
    """Places one group after another; each placed group counts for the next."""

    def __init__(self, placer: BestPlacer) -> None:
        self._fleet = placer.fleet
        self._placer = placer

    def place(self, group: ClaimGroup) -> GroupFit:
        """Place the group, if enough members find devices. Raises DracoError for an invalid topology or request."""
        asked = [
            _Asked([as_searched(each, self._fleet.classes) for each in one.claims], self._nodes(one))
            for one in group.members
        ]
        every = {name: node for each in asked for name, node in each.nodes.items()}
        best = GroupFit([[] for _ in group.members], 0, len(every))
        for domain in self._domains(group, every):
            fit = self._attempt(group, asked, domain)
            if fit.found == len(group.members):
                return fit._replace(nodes=len(every))
            if fit.tells_more_than(best):
                best = fit._replace(nodes=len(every))
        if best.found >= group.needed:
            self._count(group, best)
        return best

    def undo(self, group: ClaimGroup, fit: GroupFit) -> None:
        """Undo the placement of a group."""
        for member, results in zip(group.members, fit.results, strict=True):
            for claim in (*member.claims, *member.others) if results else ():
                self._placer.put(claim)

    def _domains(self, group: ClaimGroup, nodes: Mapping[str, Node]) -> Iterable[Mapping[str, Node]]:
        """The topology domains the group may use, those with the fewest free devices first."""
        domains = domains_of(group.topology, self._fleet, nodes, group.placed)
        if len(domains) == 1:
            return domains
        free = unpacked(self._fleet.enough, self._fleet.inventory.columns.rows)
        read = self._fleet.inventory.nodes.read
        room = [(sum(sum(read(name, free)) for name in domain), index) for index, domain in enumerate(domains)]
        return (domains[index] for size, index in sorted(room) if size)

    def _attempt(self, group: ClaimGroup, asked: Sequence[_Asked], domain: Mapping[str, Node]) -> GroupFit:
        """The best result of several orders of the members. Stays placed only if all members are."""
        order = sorted(range(len(group.members)), key=lambda index: (-devices_of(group.members[index]), index))
        best = GroupFit([[] for _ in group.members], 0, 0)
        are_alike = _are_alike(group.members, asked)
        for _ in range(ATTEMPTS):
            fit, failed = self._in_order(group, order, asked, domain)
            if not failed:
                return fit
            self.undo(group, fit)
            if fit.tells_more_than(best):
                best = fit
            if are_alike or order[: len(failed)] == failed:
                break
            order = failed + [index for index in order if index not in set(failed)]
        return best

    def _in_order(
        self,
        group: ClaimGroup,
        order: Sequence[int],
        asked: Sequence[_Asked],
        domain: Mapping[str, Node],
    ) -> tuple[GroupFit, list[int]]:
        results: list[list[AllocationResult]] = [[] for _ in group.members]
        used = {name for claim in group.placed for name in nodes_of(claim)}
        wanted = sum(map(devices_of, group.members))
        failed, lacking, shared = [], list[ResourceClaim](), dict[ObjectKey, ResourceClaim]()
        for index in order:
            member = group.members[index]
            wanted -= devices_of(member)
            nodes = _among(asked[index].nodes, domain, used if group.topology == SPREAD else ())
            # A claim shared with a placed member has that member's place.
            known = [shared[each.metadata.key] for each in member.others if each.metadata.key in shared]
            others = [each for each in member.others if each.metadata.key not in shared]
            found, foreseen, others_lack = best_together(
                self._placer,
                asked[index].claims,
                reaching(known, nodes) if known else nodes,
                beside=[*member.beside, *known],
                others=others,
                rest=RestOfGroup(used, wanted) if group.topology != SPREAD else ALONE,
            )
            if found is None:
                failed.append(index)
                lacking += member.others if others_lack else ()
                if len(order) - len(failed) < group.needed:
                    break
                continue
            shared |= {each.metadata.key: allocated(each, one) for each, one in zip(others, foreseen, strict=True)}
            of_others = [shared[each.metadata.key].status.allocation for each in member.others]
            results[index] = [*map(as_allocated, found.results), *filter(None, of_others)]
            used.add(found.node)
            self._put(member, results[index])
        return GroupFit(results, sum(map(bool, results)), 0, lacking), failed

    def _nodes(self, member: GroupMember) -> Mapping[str, Node]:
        """The nodes that all pods of the member may use and that reach its allocated claims."""
        nodes = nodes_for(self._fleet, next(iter(member.pods), None)).open
        for pod in member.pods[1:]:
            others = nodes_for(self._fleet, pod).open
            nodes = {name: node for name, node in nodes.items() if name in others}
        if member.beside:
            nodes = reaching(member.beside, nodes)
        if member.without:
            nodes = {name: node for name, node in nodes.items() if name not in set(member.without)}
        return nodes

    def _put(self, member: GroupMember, results: Sequence[AllocationResult]) -> None:
        for claim, result in zip((*member.claims, *member.others), results, strict=True):
            self._placer.put(allocated(claim, result))

    def _count(self, group: ClaimGroup, fit: GroupFit) -> None:
        for member, results in zip(group.members, fit.results, strict=True):
            if results:
                self._put(member, results)


def _are_alike(members: Sequence[GroupMember], asked: Sequence[_Asked]) -> bool:
    """Whether all members want the same on the same nodes, so that their order does not matter."""
    if any(each.beside or each.others for each in members):
        return False
    specs = [[claim.spec for claim in each.claims] for each in asked]
    return all(each.nodes.keys() == asked[0].nodes.keys() for each in asked) and all(each == specs[0] for each in specs)


def _among(nodes: Mapping[str, Node], domain: Mapping[str, Node], taken: Collection[str]) -> Mapping[str, Node]:
    if len(domain) < len(nodes):
        nodes = {name: node for name, node in domain.items() if name in nodes}
    if taken:
        nodes = {name: node for name, node in nodes.items() if name not in taken}
    return nodes


def devices_of(member: GroupMember) -> int:
    """The number of devices it asks for, as a measure of how hard it is to place."""
    requests = [request for claim in member.claims for request in claim.spec.devices.requests]
    return sum(max(1, request.exactly.count if request.exactly is not None else 1) for request in requests)
