"""Sets a condition on Nodes whose devices are all in maintenance, as `maintenance.isolating` decides.

Owns the wake-ups and these conditions, and nothing else of a Node: no label, no taint, no cordon. Keys are node names.
"""

from collections.abc import Callable

import structlog

from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.retry import FORBIDDEN_LONGEST_S, FORBIDDEN_S, Pauses
from draco.kube.errors import Forbidden, NotFound
from draco.maintenance.isolating.node_conditions import REASON, TYPES, node_conditions
from draco.resources.api.core import Node
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.meta import Condition, ObjectKey, all_timed
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import NODES
from draco.resources.names import FIELD_MANAGER_OPERATOR

log = structlog.get_logger(__name__)

BY_NODE = "maintained node"


class NodeConditionReconciler:
    """Reconciles one node at a time."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view
        self._forbidden: Pauses[None] = Pauses(view.clock.monotonic, first_s=FORBIDDEN_S, longest_s=FORBIDDEN_LONGEST_S)
        view.slices.store.add_index(BY_NODE, _node_of)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with every node name that a change may affect."""
        self._view.maintenances.subscribe_keys(wake, self._nodes_of, reads=_of_request)
        self._view.slices.subscribe_keys(wake, _node_of, reads=lambda item: item.spec)
        self._view.nodes.subscribe(lambda change: wake(change.key.name), reads=_own)

    def all_keys(self) -> set[str]:
        """The nodes of devices in maintenance, and those that have such a condition."""
        marked = {node.metadata.name for node in self._view.nodes.store.values() if _own(node)}
        return marked.union(*map(self._nodes_of, self._view.maintenances.store.values()))

    async def reconcile(self, name: str) -> float | None:
        """Update the node's conditions."""
        node = self._view.nodes.store.get(ObjectKey("", name))
        if node is None:
            return None
        before = _own(node)
        slices = self._view.slices.store.by_index(BY_NODE, name)
        pools = {item.pool: self._view.hardware(item.pool) for item in slices}
        wanted = all_timed(
            node_conditions(pools, self._view.maintenances.store.values()), before, self._view.clock.now()
        )
        if wanted == before:
            return None
        if (wait_s := self._forbidden.left_s(None)) > 0:
            return wait_s
        # Write only on top of the version seen: a replica that lost the lease unknowingly must not win.
        seen = node.metadata.as_seen
        body = {"metadata": seen, "status": {"conditions": wanted}}
        try:
            await self._client.apply(
                NODES, node.metadata.key, body, manager=FIELD_MANAGER_OPERATOR, subresource="status"
            )
        except NotFound:
            return None
        except Forbidden as error:
            log.warning("node_conditions.forbidden", node=name, error=str(error))
            return self._forbidden.begin(None, str(error))
        self._forbidden.forget(None)
        log.info("node_conditions.written", node=name, true=[each.type for each in wanted if each.status == "True"])
        return None

    def _nodes_of(self, request: DeviceMaintenance) -> set[str]:
        pools = {each.key.pool_key for each in request.status.devices}
        slices = (item for pool in pools for item in self._view.slices_of(pool))
        return {item.spec.node_name for item in slices if item.spec.node_name}


def _own(node: Node) -> list[Condition]:
    """Draco's conditions of the node, in the order in which they are written."""
    said = {each.type: each for each in node.status.conditions if each.reason == REASON}
    return [said[type_] for type_ in TYPES if type_ in said]


def _of_request(request: DeviceMaintenance) -> tuple[object, ...]:
    return request.status.phase, request.status.in_use, request.status.devices


def _node_of(item: ResourceSlice) -> list[str]:
    return [item.spec.node_name] if item.spec.node_name else []
