"""Adds Draco's scheduling gate to new pods if Draco must allocate one of their claims.

Without the gate kube-scheduler tries such a pod before Draco has allocated, fails, and backs off. Owns which pods get it;
`allocation.writing.gates` removes it. In doubt a pod gets none, and only starts later.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog
from cachetools import TTLCache

from draco.allocation.ownership.claims import is_for_operator, is_operators
from draco.controller.view import ClusterView
from draco.controller.webhook.admission_review import AdmissionRequest, ReviewOutcome, answer_to, read_review
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodResourceClaim
from draco.resources.api.foreign import read
from draco.resources.api.meta import ObjectKey
from draco.resources.errors import DracoError
from draco.resources.kinds import CLAIM_TEMPLATES
from draco.resources.names import SCHEDULING_GATE

log = structlog.get_logger(__name__)

WITHIN_S: Final = 0.75
"""The API server waits for a second."""
_REMEMBERED, _REMEMBERED_S = 4096, 30.0
"""Cache of templates. After a recreated template changed, a pod may briefly get the gate in vain, or lack it."""

_READS_AT_ONCE: Final = 16
"""Limit of parallel template reads, however many pods are created."""

_pod: Final = msgspec.json.Decoder(Pod)


class PodGates:
    """Reviews new pods once claims and DeviceClasses are `ready`. If `autoscaled`, none is gated: gated pods get no new node."""

    def __init__(self, client: Client, view: ClusterView, *, ready: Callable[[], bool], autoscaled: bool) -> None:
        self._client = client
        self._view = view
        self._ready = ready
        self._autoscaled = autoscaled
        self._templates: TTLCache[ObjectKey, bool] = TTLCache(_REMEMBERED, _REMEMBERED_S, view.clock.monotonic)
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)
        view.classes.subscribe(lambda _: self._templates.clear(), reads=is_operators)

    async def review(self, body: bytes) -> tuple[bytes, ReviewOutcome]:
        """The answer to an AdmissionReview. Raises NotAReview."""
        request = read_review(body)
        if self._autoscaled or not self._ready():
            return answer_to(request, []), ReviewOutcome.UNSEEN
        try:
            pod = read(_pod, request.object)
            async with asyncio.timeout(WITHIN_S):
                waits = await self._waits_for_draco(request, pod)
        except (msgspec.DecodeError, DracoError, TimeoutError) as error:
            log.warning("gate.not_set", pod=_called(request), error=str(error) or f"no answer within {WITHIN_S:g} s")
            return answer_to(request, []), ReviewOutcome.UNSEEN
        if not waits:
            return answer_to(request, []), ReviewOutcome.CLEAN
        gate = {"name": SCHEDULING_GATE}
        path, value = (
            ("/spec/schedulingGates/-", gate) if pod.spec.scheduling_gates else ("/spec/schedulingGates", [gate])
        )
        return answer_to(request, [], patch=[{"op": "add", "path": path, "value": value}]), ReviewOutcome.GATED

    async def _waits_for_draco(self, request: AdmissionRequest, pod: Pod) -> bool:
        """Whether the pod may get the gate, and Draco must still allocate one of its claims. Raises ApiError."""
        if pod.spec.node_name or any(each.name == SCHEDULING_GATE for each in pod.spec.scheduling_gates):
            return False  # a pod with a node may have no gate
        for entry in pod.spec.resource_claims:
            if await self._is_for_draco(request.namespace, entry):
                return True
        return False

    async def _is_for_draco(self, namespace: str, entry: PodResourceClaim) -> bool:
        if entry.resource_claim_name:
            claim = self._view.claims.store.get(ObjectKey(namespace, entry.resource_claim_name))
            return (
                claim is not None
                and claim.status.allocation is None
                and is_for_operator(claim, self._view.classes_by_name)
            )
        if not entry.resource_claim_template_name:
            return False
        key = ObjectKey(namespace, entry.resource_claim_template_name)
        if (known := self._templates.get(key)) is None:
            # Read, not watched: it is often created together with the pod, before a watch delivers it.
            try:
                async with self._reads:
                    template = await self._client.get(CLAIM_TEMPLATES, key, timeout_s=WITHIN_S)
            except NotFound:
                return False
            claim = ResourceClaim(metadata=template.metadata, spec=template.spec.spec)
            known = self._templates[key] = is_for_operator(claim, self._view.classes_by_name)
        return known


def _called(request: AdmissionRequest) -> str:
    return str(ObjectKey(request.namespace, request.name or "(new)"))
