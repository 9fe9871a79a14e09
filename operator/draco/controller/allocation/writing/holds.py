"""Protects nodes from scale-down while Draco's claims without a pod hold devices there (`allocation.ownership.holds`).

Owns the wake-ups, the timing and these annotations, and no other part of a Node. Keys are node names. A claim whose pod is known
lacks it only briefly, so a node is held once a claim has been alone for a while, and released a while after the last: otherwise a
busy cluster would write its Nodes constantly.
"""

from collections.abc import Callable

import structlog

from draco.allocation.ownership.holds import holding, releasing, unattended_nodes
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.retry import FORBIDDEN_LONGEST_S, FORBIDDEN_S, Pauses
from draco.kube.errors import Forbidden, NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import NODES
from draco.resources.names import ANNOTATION_HELD

log = structlog.get_logger(__name__)

HOLD_AFTER_S = 2.0
RELEASE_AFTER_S = 30.0
_BY_POOL = "pool of a claim without a pod"


class ScaleDownHolds:
    """Reconciles one node at a time."""

    def __init__(self, client: Client, view: ClusterView) -> None:
        self._client = client
        self._view = view
        self._since_s: dict[str, tuple[bool, float]] = {}  # by node: whether to hold it, and since when
        self._forbidden: Pauses[None] = Pauses(view.clock.monotonic, first_s=FORBIDDEN_S, longest_s=FORBIDDEN_LONGEST_S)
        view.claims.store.add_index(_BY_POOL, _pools)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with every node name that a change may affect."""
        self._view.claims.subscribe_keys(wake, _pools, reads=_of_claim)
        self._view.nodes.subscribe(lambda change: wake(change.key.name), reads=lambda node: node.metadata.annotations)

    def all_keys(self) -> set[str]:
        """The nodes of claims without a pod, and the nodes already held."""
        pools = {pool for claim in self._view.claims.store.values() for pool in _pools(claim)}
        return pools | {
            node.metadata.name
            for node in self._view.nodes.store.values()
            if ANNOTATION_HELD in node.metadata.annotations
        }

    async def reconcile(self, name: str) -> float | None:
        """Hold or release the node."""
        node = self._view.nodes.store.get(ObjectKey("", name))
        if node is None:
            self._since_s.pop(name, None)
            return None
        needed = self._needed(name)
        change = (holding if needed else releasing)(node.metadata.annotations)
        if not change:
            self._since_s.pop(name, None)
            return None
        now_s = self._view.clock.monotonic()
        before = self._since_s.get(name)
        if before is None or before[0] is not needed:
            before = self._since_s[name] = (needed, now_s)
        due_s = before[1] + (HOLD_AFTER_S if needed else RELEASE_AFTER_S)
        wait_s = max(due_s - now_s, self._forbidden.left_s(None))
        if wait_s > 0:
            return wait_s
        # Write only on top of the version seen: a replica that lost the lease unknowingly must not win.
        seen = node.metadata.as_seen
        try:
            await self._client.patch(NODES, node.metadata.key, {"metadata": {**seen, "annotations": change}})
        except NotFound:
            return None
        except Forbidden as error:
            log.warning("scale_down_hold.forbidden", node=name, error=str(error))
            return self._forbidden.begin(None, str(error))
        self._forbidden.forget(None)
        log.info("scale_down_hold.written", node=name, held=needed)
        return None

    def _needed(self, name: str) -> bool:
        claims = self._view.claims.store.by_index(_BY_POOL, name)
        classes = self._view.classes_by_name if claims else {}
        return any(name in unattended_nodes(claim, classes) for claim in claims)


def _pools(claim: ResourceClaim) -> set[str]:
    allocation = claim.status.allocation
    if allocation is None or claim.status.reserved_for:
        return set()
    return {result.pool for result in allocation.devices.results}


def _of_claim(claim: ResourceClaim) -> tuple[object, ...]:
    return _pools(claim), claim.metadata.deletion_timestamp
