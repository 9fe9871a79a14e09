"""Clears GPUs for another form: when their agents' taint has been in the API for a while, and no claim holds them otherwise.

Owns the notices, which are in memory only, so a new leader clears later, never sooner, and the reading of claims: from the API
server itself, as the watch may lag behind what a scheduler wrote last. `sharing.clearance` has the rules, `decisions` judges by
the claims that were read. The GpuNode's reconciler writes.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from draco.controller.sharing.decisions import SharingDecisions
from draco.controller.view import BY_POOL, ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import ClearedGpu, GpuNode
from draco.resources.api.meta import ObjectKey
from draco.resources.api.sharing import SharedGpu
from draco.resources.api.slices import own_slices
from draco.resources.kinds import CLAIMS
from draco.resources.names import PoolKey
from draco.sharing.clearance import Notice, noticed, withdrawn
from draco.sharing.decide import NodeForms

log = structlog.get_logger(__name__)

_AGAIN_S: Final = 1.0
"""How soon to read claims again: after an error, or when one that the watch has not shown yet holds the GPU."""


class Clearances(NamedTuple):
    """Cleared GPUs with the form that they are cleared for, by UUID; and when to look again."""

    by_gpu: Mapping[str, tuple[ClearedGpu, SharedGpu | None]] = {}
    again_s: float | None = None

    def of(self, forms: NodeForms) -> list[ClearedGpu]:
        """Those that hold for the forms that are asked for now."""
        asked = _asked(forms)
        return [each for each, form in self.by_gpu.values() if each.uuid in asked and asked[each.uuid] == form]


class FormClearances:
    """The notices of all nodes, and the claims as last read."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        sharing: SharingDecisions,
        on_their_way: Callable[[], Sequence[ResourceClaim]],
    ) -> None:
        """`on_their_way` has claims with allocations that Draco is writing: one without an answer may take effect late."""
        self._client = client
        self._view = view
        self._sharing = sharing
        self._on_their_way = on_their_way
        self._notices: dict[str, dict[str, Notice]] = {}
        self._reading = asyncio.Lock()
        self._read_s = float("-inf")
        self._claims: dict[PoolKey, list[ResourceClaim]] = {}

    async def of(self, node: str) -> Clearances:
        """The clearances of a node's GPUs. Reads claims only for GPUs that wait for one. Raises nothing."""
        gpu_node, forms = self._view.gpu_nodes.store.get(ObjectKey("", node)), self._sharing.of(node)
        before = self._notices.pop(node, {})
        if not self._notices and not before:
            self._claims.clear()
        if gpu_node is None or forms is None:
            return Clearances()
        pool, asked = gpu_node.pool, _asked(forms)
        if not asked:
            return Clearances()  # nothing is shared
        slices = own_slices(self._view.slices.store.by_index(BY_POOL, pool), node)
        devices = [device for each in slices for device in each.spec.devices]
        going = withdrawn(devices, gpu_node.status.driver) & asked.keys()
        if not any(asked.values()) and not any(each.allow_multiple_allocations for each in devices):
            return Clearances()  # nothing is shared, nor was
        if not slices or len(slices) < slices[0].spec.pool.resource_slice_count:
            if before:
                self._notices[node] = before
            return Clearances(_standing(gpu_node, asked, before))
        generation, now_s = slices[0].spec.pool.generation, self._view.clock.monotonic()
        if not going:
            return Clearances()
        notices = self._notices[node] = noticed(before, going, generation, now_s)
        found = _standing(gpu_node, asked, notices)
        open_ = {
            uuid: each for uuid, each in notices.items() if uuid not in found or found[uuid][0].generation < generation
        }
        waits_s = [each.due_s - now_s for each in open_.values() if each.due_s > now_s]
        due = [uuid for uuid, each in open_.items() if each.due_s <= now_s]
        if due:
            claims = await self._held(pool, max(open_[uuid].due_s for uuid in due))
            fresh = {} if claims is None else _asked(self._sharing.judged(gpu_node, claims))
            for uuid in due:
                if uuid in fresh and fresh[uuid] == asked[uuid]:
                    found[uuid] = ClearedGpu(uuid=uuid, generation=generation), asked[uuid]
                else:
                    waits_s.append(_AGAIN_S)
        return Clearances(found, min(waits_s, default=None))

    async def _held(self, pool: PoolKey, since_s: float) -> Sequence[ResourceClaim] | None:
        """The claims that hold devices of the pool, read at this time or later, and just now; None if they cannot be read.

        One reading serves all nodes, because a policy concerns many.
        """
        async with self._reading:
            now_s = self._view.clock.monotonic()
            if self._read_s < since_s or now_s >= self._read_s + _AGAIN_S:
                try:
                    found = await self._client.list(CLAIMS)
                except (ApiError, ValueError) as error:
                    log.info("sharing.claims_unread", error=str(error), again_in_s=_AGAIN_S)
                    return None
                self._claims.clear()
                self._read_s = now_s
                for claim in found:
                    for each in {held.pool_key for held in claim.devices_held}:
                        self._claims.setdefault(each, []).append(claim)
            written = (
                each for each in self._on_their_way() if any(held.pool_key == pool for held in each.devices_held)
            )
            return [*self._claims.get(pool, ()), *written]


def _asked(forms: NodeForms) -> dict[str, SharedGpu | None]:
    return {each.uuid: each.form for each in forms.gpus}


def _standing(
    gpu_node: GpuNode, asked: Mapping[str, SharedGpu | None], notices: Mapping[str, Notice]
) -> dict[str, tuple[ClearedGpu, SharedGpu | None]]:
    """The written clearances of GPUs that still have the taint and are asked for the same form."""
    written = {each.uuid: each for each in gpu_node.spec.shared}
    return {
        each.uuid: (each, asked[each.uuid])
        for each in gpu_node.spec.cleared
        if each.uuid in notices and each.uuid in asked and asked[each.uuid] == written.get(each.uuid)
    }
