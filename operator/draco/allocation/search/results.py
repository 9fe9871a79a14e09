"""What a successful search is written down as: an AllocationResult for each claim.

Owns the result's devices, its configuration and its node selector. Decides nothing about devices.
"""

from collections.abc import Iterator, Sequence

from draco.allocation.errors import AllocationError
from draco.allocation.search.attempt import Trial
from draco.allocation.search.requests import Claim, Request
from draco.resources.api.claims import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
)
from draco.resources.api.core import Node
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm


def result(
    claim: Claim, chosen: Sequence[Request], trials: Sequence[Trial], node: Node, share_ids: Iterator[str]
) -> AllocationResult:
    """The result of one claim. `chosen` has the alternative that each request got.

    Raises AllocationError if a slice has a node selector of several terms.
    """
    return AllocationResult(
        devices=DeviceAllocationResult(
            results=[_device(trial, share_ids) for trial in trials], config=_config(claim, chosen)
        ),
        node_selector=_node_selector(trials, node),
    )


def _device(trial: Trial, share_ids: Iterator[str]) -> DeviceRequestAllocationResult:
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


def _config(claim: Claim, chosen: Sequence[Request]) -> list[DeviceAllocationConfiguration]:
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
    """The requests a configuration is for; none, which means all, if it is for every one."""
    every = all(request.base in names or request.name in names for request in chosen)
    return [] if every else list(names)


def _node_selector(trials: Sequence[Trial], node: Node) -> NodeSelector | None:
    """Where the devices can be reached: on this node only, where all selectors hold, or (None) everywhere."""
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
