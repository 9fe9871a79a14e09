"""Which devices the claims of one pod get on one node, as kube-scheduler decides, and the first node where they fit.

Owns the order of the steps (gather the node's pools, read the claims, search, write an AllocationResult per claim), the order of
nodes, and what an error on one node means for the others. The answer for a node equals that of Kubernetes' structured allocator
(the incubating variant, default of 1.36 and 1.37): same verdict, devices, order and kind of error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final

from draco.allocation.errors import AllocationError, NodeError
from draco.allocation.fleet.counters import Counters
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.inventory import Inventory
from draco.allocation.fleet.pools import PoolView
from draco.allocation.fleet.state import AllocatedState
from draco.allocation.search.attempt import Attempt, TakenDevice
from draco.allocation.search.candidates import candidates
from draco.allocation.search.requests import ExpandedClaim, Request, expand, matcher
from draco.allocation.search.search import Search
from draco.resources.api.claims import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClass,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from draco.resources.api.core import Node
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

MAX_STEPS: Final = 2_000_000
"""Devices that one search may examine before it gives up: a few seconds."""


def allocate(
    inventory: Inventory,
    state: AllocatedState,
    node: Node,
    claims: Sequence[ResourceClaim],
    classes: Mapping[str, DeviceClass],
    *,
    share_ids: Iterator[str],
    max_steps: int = MAX_STEPS,
    views: Sequence[PoolView] | None = None,
) -> list[AllocationResult] | None:
    """One result per claim, or None if they do not all fit on the node.

    `share_ids` gives a new UUID for each share of a device. `views` replaces the node's published pools, for callers that ask
    "what if". Raises NodeError if they do not fit and a pool of the node is invalid; any other AllocationError holds for all
    nodes.
    """
    if views is None:
        views = inventory.views(node)
    match = matcher(inventory.selectors, node)
    expanded = [expand(claim, classes, views, match) for claim in claims]
    candidates = [candidate for view in views for candidate in view.candidates]
    attempt = Attempt(expanded, state, Counters(views, state))
    search = Search(expanded, candidates, attempt, max_steps=max_steps)
    if not search.run():
        invalid = [view for view in views if view.invalid]
        if invalid:
            reasons = "; ".join(f"{view.key}: {view.invalid}" for view in invalid)
            raise NodeError(f"invalid resource pools were encountered: {reasons}")
        return None
    chosen = search.chosen()
    return [
        result(
            claim,
            [alternatives[chosen[index, number]] for number, alternatives in enumerate(claim.requests)],
            attempt.trials[index],
            node,
            share_ids,
        )
        for index, claim in enumerate(expanded)
    ]


def would_get(
    fleet: Fleet,
    node: Node,
    claims: Sequence[ResourceClaim],
    *,
    max_steps: int,
    state: AllocatedState | None = None,
    views: Sequence[PoolView] | None = None,
) -> list[AllocationResult] | None:
    """What `allocate` finds, without share ids. `state` replaces what is in use, `views` the pools. Raises AllocationError."""
    state = fleet.state if state is None else state
    return allocate(
        fleet.inventory, state, node, claims, fleet.classes, share_ids=repeat(""), max_steps=max_steps, views=views
    )


def first_fitting(
    fleet: Fleet,
    claims: Sequence[ResourceClaim],
    nodes: Iterable[Node] | None = None,
    *,
    share_ids: Iterator[str],
    max_steps: int = MAX_STEPS,
) -> tuple[Node, list[AllocationResult]] | None:
    """The first of the nodes (all, by name, unless given) on which the claims fit together, with a result per claim.

    NodeError only rules that node out. Any other AllocationError before a node fits is raised, as kube-scheduler then gives up on
    the pod; SearchTooLong only for a node with enough devices to choose from.
    """
    for node in _to_ask(fleet, claims, nodes):
        try:
            results = allocate(
                fleet.inventory, fleet.state, node, claims, fleet.classes, share_ids=share_ids, max_steps=max_steps
            )
        except NodeError:
            continue
        if results is not None:
            return node, results
    return None


def _to_ask(fleet: Fleet, claims: Sequence[ResourceClaim], nodes: Iterable[Node] | None) -> Iterable[Node]:
    """The nodes in order, without those that `candidates` rules out."""
    given = None if nodes is None else list(nodes)
    if not (fleet.nodes if given is None else given):
        return ()
    worth = candidates(fleet, claims)
    if given is None:
        names = fleet.node_names if worth is None else worth.among(fleet.node_names)
        return (fleet.nodes[name] for name in names)
    return given if worth is None else (node for node in given if node.metadata.name in worth)


def result(
    claim: ExpandedClaim, chosen: Sequence[Request], trials: Sequence[TakenDevice], node: Node, share_ids: Iterator[str]
) -> AllocationResult:
    """One claim's result for `chosen` alternatives. Raises AllocationError if a slice's node selector has several terms."""
    return AllocationResult(
        devices=DeviceAllocationResult(
            results=[_device(trial, share_ids) for trial in trials], config=_config(claim, chosen)
        ),
        node_selector=_node_selector(trials, node),
    )


def _device(trial: TakenDevice, share_ids: Iterator[str]) -> DeviceRequestAllocationResult:
    key, device, request = trial.candidate.key, trial.candidate.device, trial.request
    return DeviceRequestAllocationResult(
        request=request.name,
        driver=key.driver,
        pool=key.pool,
        device=key.device,
        admin_access=True if request.admin_access else None,
        tolerations=request.asked.tolerations,
        binding_conditions=device.binding_conditions,
        binding_failure_conditions=device.binding_failure_conditions,
        share_id=None if trial.amounts is None else next(share_ids),
        consumed_capacity={name: str(quantity) for name, quantity in (trial.amounts or {}).items()},
    )


def _config(claim: ExpandedClaim, chosen: Sequence[Request]) -> list[DeviceAllocationConfiguration]:
    of_class: dict[str, list[Request]] = {}
    for request in chosen:
        of_class.setdefault(request.device_class.metadata.name, []).append(request)
    names = {name for request in chosen for name in (request.base, request.name)}
    from_class = [
        DeviceAllocationConfiguration(
            source="FromClass", requests=_unless_all([each.name for each in requests], chosen), opaque=config.opaque
        )
        for requests in of_class.values()
        for config in requests[0].device_class.spec.config
    ]
    from_claim = [
        DeviceAllocationConfiguration(
            source="FromClaim", requests=_unless_all(config.requests, chosen), opaque=config.opaque
        )
        for config in claim.claim.spec.devices.config
        if not config.requests or not names.isdisjoint(config.requests)
    ]
    return from_class + from_claim


def _unless_all(names: Sequence[str], chosen: Sequence[Request]) -> list[str]:
    """The requests of a configuration; empty, which means all, if it names every one."""
    every = all(request.base in names or request.name in names for request in chosen)
    return [] if every else list(names)


def _node_selector(trials: Sequence[TakenDevice], node: Node) -> NodeSelector | None:
    """Where the devices can be reached: on this node only, where all selectors match, or everywhere (None)."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for trial in trials:
        spec, device = trial.candidate.spec, trial.candidate.device
        where = device if spec.per_device_node_selection else spec
        if where.node_name is not None or device.binds_to_node:
            only = NodeSelectorRequirement(key="metadata.name", operator="In", values=[node.metadata.name])
            return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[only])])
        terms = where.node_selector.node_selector_terms if where.node_selector is not None else []
        if len(terms) > 1:
            raise AllocationError(f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms")
        for term in terms:
            _add_new(term.match_fields, fields)
            _add_new(term.match_expressions, expressions)
    if not fields and not expressions:
        return None
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=fields, match_expressions=expressions)])


def _add_new(wanted: Sequence[NodeSelectorRequirement], known: list[NodeSelectorRequirement]) -> None:
    said = {_meaning(each): each for each in known}
    for each in wanted:
        if _meaning(each) not in said:
            said[_meaning(each)] = each
            known.append(each)


def _meaning(each: NodeSelectorRequirement) -> tuple[object, ...]:
    return each.key, each.operator, frozenset(each.values)
