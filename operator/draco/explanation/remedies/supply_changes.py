"""Tries the claims on a cluster with one change that others must make: a taint, another claim, a node's rules, a pool."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from draco.allocation.errors import AllocationError
from draco.allocation.fleet.pools import Candidate, Pool, PoolView
from draco.allocation.fleet.rowwise import select
from draco.allocation.search.candidates import tolerated
from draco.explanation.findings.details import TRIED_BEFORE, consumers_of, taint_seen
from draco.explanation.findings.lifting import lifting
from draco.explanation.findings.node_rules import PlacementObstacle
from draco.explanation.model import ChangeKind, NodeReason
from draco.explanation.remedies.changes import SuggestedChange
from draco.explanation.remedies.trials import Trials
from draco.explanation.selection import first_rows
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectKey
from draco.resources.api.taints import DeviceTaint, TaintIdentity
from draco.resources.names import LABEL_HOSTNAME, PoolKey
from draco.resources.texts import agreeing, listed, them

_NOT: Final = bytes(each == 0 for each in range(256))
_LOOKED_AT: Final = 2000
_ROWS: Final = 200
_TAINTS: Final = 4
_IDLE: Final = 12
_BUSY_NODES: Final = 3
_BUSY: Final = 8
_CLOSED: Final = 12
_POOLS: Final = 3


def lifted_taints(trials: Trials) -> Iterator[SuggestedChange]:
    """Lifted taints; or tolerated ones, which is the same unless the taint states that a device cannot be used.

    If no single taint suffices: all taints of a device.
    """
    inventory = trials.fleet.inventory
    single: dict[TaintIdentity, DeviceTaint] = {}
    together: dict[tuple[TaintIdentity, ...], Sequence[DeviceTaint]] = {}
    for request in trials.requests:
        tainted = trials.free(request, request.selection.eligible, request.tolerated.translate(_NOT))
        kinds = {inventory.taints.codes[row]: row for row in first_rows(tainted, _ROWS)}
        for row in kinds.values():
            tolerations = request.asked.tolerations
            found = [one for one in inventory.taints_of(row) if not any(each.tolerates(one) for each in tolerations)]
            single.update({taint.identity: taint for taint in reversed(found) if taint.identity not in single})
            if len(found) > 1:
                together.setdefault(tuple(taint.identity for taint in found), found)
    lifted = [change for taint in list(single.values())[:_TAINTS] for change in _lifted(trials, [taint])]
    yield from lifted
    for taints in list(together.values())[:_TAINTS] if not lifted else ():
        yield from _lifted(trials, taints)


def _lifted(trials: Trials, taints: Sequence[DeviceTaint]) -> Iterator[SuggestedChange]:
    keys = {taint.identity for taint in taints}
    marks = [
        (each, trials.free(each, each.selection.eligible, tolerated(trials.fleet, each.asked.tolerations, keys)))
        for each in trials.requests
    ]
    for node in trials.nodes(marks):
        views = [_without_taints(view, keys) for view in trials.fleet.inventory.views(node)]
        results = trials.fits(node, views=views)
        if results is None:
            continue
        taken = {each.key for result in results for each in result.devices.results}
        tainted = {
            candidate.key: candidate
            for view in trials.fleet.inventory.views(node)
            for candidate in view.candidates
            if candidate.key in taken and any(each.identity in keys for each in candidate.taints)
        }
        named = " and ".join(_named(trials, taint, tainted.values()) for taint in taints)
        devices = listed(sorted(tainted))
        text = lifting(taints, named=named, devices=devices, classes=trials.fleet.classes, of_pod=trials.tolerated_keys)
        yield SuggestedChange.of(ChangeKind.LIFT_TAINT, text, node, results, taints=taints)
        return


def _named(trials: Trials, taint: DeviceTaint, tainted: Iterable[Candidate]) -> str:
    """A taint of devices, with the rules that set it."""
    rules = {taint_seen(trials.fleet, each, taint.identity).rule for each in tainted} - {""}
    return str(taint.identity) + (f" (rule {listed(sorted(rules))})" if rules else "")


def freed_claims(trials: Trials) -> Iterator[SuggestedChange]:
    """Another claim that is deleted: an unused one, or one in use."""
    yield from islice(_freed_idle(trials), 1)
    yield from islice(_freed_busy(trials), 1)


def _freed_idle(trials: Trials) -> Iterator[SuggestedChange]:
    fleet = trials.fleet
    tried = 0
    for key in islice(fleet.idle, _LOOKED_AT):
        rows = [row for device in fleet.state.held_by(key) for row in fleet.inventory.rows(device)]
        if tried >= _IDLE or not any(_matters(trials, row) for row in rows):
            continue
        names = set(map(fleet.inventory.node_of, rows))
        nodes = [fleet.nodes[name] for name in sorted(names) if name in fleet.nodes]
        if "" in names:
            nodes += trials.nodes([(request, request.selection.eligible) for request in trials.requests], most=1)
        for node in filter(trials.may_go, nodes):
            tried += 1
            results = trials.fits(node, without=key)
            if results is not None:
                text = _unused(fleet.claims[key])
                yield _freed(trials, ChangeKind.FREE_IDLE_CLAIM, text, (node, results), key)


def _unused(claim: ResourceClaim) -> str:
    """How to get rid of an unused claim. A claim owned by a reservation or a waiting pod would be created again."""
    key, owner = claim.metadata.key, claim.metadata.controller
    if owner is None:
        return f"delete claim {key}, which is allocated but not used by any pod"
    what = "pod" if owner.kind == "Pod" else owner.kind
    return f"delete {what} {key.namespace}/{owner.name}, whose claim {key} is allocated but not used yet"


def _matters(trials: Trials, row: int) -> bool:
    """Whether freeing the device may help, directly or through the counters it draws from."""
    device = trials.fleet.inventory.columns.devices[row]
    return any(request.selection.eligible[row] for request in trials.requests) or (
        device is not None and bool(device.consumes_counters)
    )


def _freed_busy(trials: Trials) -> Iterator[SuggestedChange]:
    fleet = trials.fleet
    own = {claim.metadata.key for claim in trials.claims}
    free = trials.likely_nodes(most=_BUSY_NODES)
    held = [
        (request, select([trials.slice_states, request.selection.eligible, request.tolerated]))
        for request in trials.requests
    ]
    nodes = {node.metadata.name: node for node in (*free, *trials.nodes(held, most=_BUSY_NODES))}
    for node in nodes.values():
        try:
            views = fleet.inventory.views(node)
        except AllocationError:
            continue
        holders: dict[ObjectKey, None] = {}
        for candidate in (candidate for view in views for candidate in view.candidates):
            if any(request.selection.eligible[candidate.row] for request in trials.requests) or candidate.charges:
                holders.update(dict.fromkeys(fleet.holders(candidate.key)))
        busy = [key for key in holders if key not in own and fleet.claims[key].status.reserved_for]
        for key in busy[:_BUSY]:
            results = trials.fits(node, without=key)
            if results is None:
                continue
            if text := _unasked(trials, fleet.claims[key], results):
                kind = ChangeKind.LOWER_OTHERS
            else:
                kind, text = ChangeKind.FREE_CLAIM, _released(fleet.claims[key])
            yield _freed(trials, kind, text, (node, results), key)


def _freed(
    trials: Trials, kind: ChangeKind, text: str, found: tuple[Node, Sequence[AllocationResult]], key: ObjectKey
) -> SuggestedChange:
    return SuggestedChange.of(kind, text, *found, claim=str(key), names_subject=key in trials.own, gone=key)


def _unasked(trials: Trials, claim: ResourceClaim, results: Sequence[AllocationResult]) -> str:
    """How a claim could give up a capacity needed here that it holds without asking for it; "" if there is none.

    `results` is what the waiting claims would get without it.
    """
    wanted = {name for each in trials.requests if each.asked.capacity for name in each.asked.capacity.requests}
    needed = {name for result in results for each in result.devices.results for name in each.consumed_capacity}
    asked = {
        name: each.capacity.requests.keys() if each.capacity is not None else ()
        for request in claim.spec.devices.requests
        for name, each in request.alternatives
    }
    unasked = {
        name: amount
        for result in claim.results
        for name, amount in result.consumed_capacity.items()
        if name not in asked.get(result.request, ())
    }
    recreate = f"recreate claim {claim.metadata.key} with a request for the"
    for name in unasked.keys() & wanted:
        return f"{recreate} {name} that it needs: without one it takes {unasked[name]}"
    for name in sorted(unasked.keys() & needed):
        return f"ask for only the {name} needed, and {recreate} same: without one, each takes {unasked[name]}"
    return ""


def opened_nodes(trials: Trials) -> Iterator[SuggestedChange]:
    """Nodes that the pod may not use for a single reason."""
    if not trials.is_any_closed:
        return

    def is_closed(node: Node) -> bool:
        return len(trials.rules.obstacles(node)) == 1 and trials.reaches(node)

    named: set[NodeReason] = set()
    for node in trials.likely_nodes(where=is_closed, most=_CLOSED):
        [obstacle] = trials.rules.obstacles(node)
        if obstacle.reason in named:
            continue
        results = trials.fits(node)
        if results is not None:
            named.add(obstacle.reason)
            kind, text = _opened(node, obstacle)
            yield SuggestedChange.of(kind, text, node, results, obstacle=obstacle)


def _opened(node: Node, obstacle: PlacementObstacle) -> tuple[ChangeKind, str]:
    name = node.metadata.name
    match obstacle.reason:
        case NodeReason.UNSCHEDULABLE:
            return ChangeKind.UNCORDON, f"uncordon node {name}"
        case NodeReason.NOT_READY:
            return (
                ChangeKind.TOLERATE_NODE,
                f"repair node {name}, which has the taint {obstacle.what}",
            )
        case NodeReason.TAINTED:
            return ChangeKind.TOLERATE_NODE, f"let the pod tolerate the taint {obstacle.what} of node {name}"
        case NodeReason.NODE_SELECTOR:
            return ChangeKind.NODE_SELECTOR, _selecting(node, obstacle.what)
        case NodeReason.NODE_NAME:
            return ChangeKind.NODE_SELECTOR, f"remove nodeName: {obstacle.what} from the pod"
    return ChangeKind.NODE_SELECTOR, f"allow node {name} in the pod's node affinity"


def _selecting(node: Node, asked: str) -> str:
    """The change to a pod's nodeSelector that asks for a label, written as key=value, which the node lacks."""
    key, _, wanted = asked.partition("=")
    has, name = node.metadata.labels.get(key), node.metadata.name
    if has and key == LABEL_HOSTNAME and wanted == name:
        return f"write {key}: {has}, the node's label, in the pod's nodeSelector"
    beside = "" if has is None else f" (node {name} has {has})"
    return f"remove {asked} from the pod's nodeSelector{beside}"


def repaired_pools(trials: Trials) -> Iterator[SuggestedChange]:
    """Pools with missing slices, assumed to be complete as published."""
    inventory = trials.fleet.inventory
    broken = select([inventory.columns.live, trials.slice_states.translate(_NOT)])
    keys: dict[PoolKey, None] = {}
    for request in trials.requests:
        for row in first_rows(select([broken, request.selection.eligible, request.tolerated]), _ROWS):
            device = inventory.key(row)
            keys[device.pool_key] = None
    for key in list(keys)[:_POOLS]:
        pool = inventory.pool(key)
        if pool is None:
            continue
        newest = max(entry.spec.pool.generation for entry in pool.entries)
        here = [entry for entry in pool.entries if entry.spec.pool.generation == newest]
        wanted = here[0].spec.pool.resource_slice_count
        if len(here) == wanted:
            continue
        whole = Pool(key)
        for entry in here:
            named = msgspec.structs.replace(entry.spec.pool, resource_slice_count=len(here))
            whole.put(msgspec.structs.replace(entry, spec=msgspec.structs.replace(entry.spec, pool=named)))
        names = {inventory.node_of(row) for entry in here for row in entry.rows}
        nodes = [trials.fleet.nodes[name] for name in sorted(names) if name in trials.fleet.nodes]
        for node in filter(trials.may_go, nodes or map(trials.fleet.nodes.__getitem__, trials.fleet.node_names[:1])):
            results = trials.fits(node, views=_with_pool(inventory.views(node), whole, node))
            if results is not None:
                text = (
                    f"publish pool {key} completely: {len(here)} of the {wanted} slices of its newest generation exist"
                )
                yield SuggestedChange.of(ChangeKind.REPAIR_POOL, text, node, results, pool=key)
                return


def _with_pool(views: Sequence[PoolView], pool: Pool, node: Node) -> list[PoolView]:
    view = pool.view(node)
    changed = [each for each in views if each.key != pool.key] + ([view] if view is not None else [])
    return sorted(changed, key=lambda each: (each.has_binding_conditions, each.key))


def _without_taints(view: PoolView, keys: Collection[TaintIdentity]) -> PoolView:
    if not any(each.identity in keys for candidate in view.candidates for each in candidate.taints):
        return view
    candidates = [
        msgspec.structs.replace(candidate, taints=tuple(each for each in candidate.taints if each.identity not in keys))
        for candidate in view.candidates
    ]
    return msgspec.structs.replace(view, candidates=candidates)


def _released(claim: ResourceClaim) -> str:
    if TRIED_BEFORE in claim.status.reserved_for:
        return f"leave out claim {claim.metadata.key}, which was tried before"
    consumers = consumers_of(claim)
    use = agreeing(len(consumers), "it uses", "they use")
    return f"wait for {listed(consumers)} to end, or delete {them(len(consumers))}: {use} claim {claim.metadata.key}"
