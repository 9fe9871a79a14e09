"""Allocates the claims that are Draco's: as soon as they exist, or when their pod does.

Owns the order in which claims are served, what is on its way to the API server, and the two writes of an allocation: the
finalizer that every allocated claim has, and the allocation itself, each on top of just the version that was seen. Where claims
go is asked of the workers, since what tenants write is evaluated there. There is one key: one decision follows the other, so that
each knows those before it.

A claim whose pod is known goes where that pod may run, together with the pod's other claims of Draco's; a claim without a pod
goes where there is room, and so is reserved for the pod to come.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import msgspec
import structlog
from prometheus_client import Counter

from draco.allocation.ownership.claims import is_for_operator
from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.refusals import NodeRefusals
from draco.controller.claims.release import reference
from draco.controller.mig.handover import HandoverReconciler
from draco.controller.view import UNALLOCATED, ClusterView
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import Failed, OutOfMemory, OverBudget, PlaceClaims, PlacementAnswer, refusal
from draco.controller.workers.pool import WorkerPool
from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, ServerError, Unreachable
from draco.kube.events.events import EventRecorder
from draco.placing.groups import ClaimGroup, GroupPlacement, allocated
from draco.resources.api.claims import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import CLAIMS
from draco.resources.texts import listed

log = structlog.get_logger(__name__)

KEY = ""
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""On every claim that is allocated; kube-controller-manager takes it away with the allocation."""
ALLOCATED_REASON = "Allocated"
EVENT_ACTION = "Allocating"
REMEDY = (
    "set the chart's value operator.allocate to true, which gives the operator the rights and the admission policies"
)

_GROUPS_AT_ONCE = 32
_WRITES_AT_ONCE = 8
_AGAIN_S = 1.0
"""How soon a group that found no place is tried again, where nothing has told of a change."""
_REFUSED_S = 5.0
"""How long nothing is written after the API server refused: a role is mended by a person, but a policy may only be late."""
_NOT_GIVEN_OUT = ObjectKey("", "draco-not-given-out")


class _Written(msgspec.Struct, frozen=True):
    """An allocation on its way: the claim with it, and the versions that it replaces."""

    claim: ResourceClaim
    replaced: frozenset[str]


_Basis: TypeAlias = tuple[int, frozenset[GpuPlace]]
"""What a placement rests on: the version of the fleet, and the GPUs that may be given out."""


class _NoPlace(msgspec.Struct, frozen=True):
    """A group that found no place: what was known then, when that was, and why."""

    basis: _Basis
    at_s: float
    why: str
    again_s: float
    """When to ask again though nothing has changed: a node that was refused may be taken again."""


class ClaimAllocations:
    """All claims that wait for Draco, oldest first, a batch of one namespace at a time."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        handover: HandoverReconciler,
        workers: WorkerPool,
        events: EventRecorder,
        *,
        clock: Clock,
        count: Counter,
    ) -> None:
        self._client = client
        self._view = view
        self._handover = handover
        self._workers = workers
        self._events = events
        self._clock = clock
        self._count = count
        self._written: dict[ObjectKey, _Written] = {}
        self._without_place: dict[str, _NoPlace] = {}  # by group
        self._alone: set[str] = set()  # groups that are to be asked about alone
        self._refused_until_s = float("-inf")
        self.refusals = NodeRefusals(view, events, clock=clock)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called when a claim may have to be allocated, or may be by now."""
        self._view.followed.subscribe(lambda: wake(KEY))
        self._view.pods.subscribe(lambda change: wake(KEY) if change.differs(_concern) else None)
        self._handover.when_owned(lambda: wake(KEY))

    def all_keys(self) -> set[str]:
        """The one key."""
        return {KEY}

    @property
    def waiting(self) -> dict[str, str]:
        """Why groups of claims have no place, by UID of their pod, or of their claim."""
        return {uid: each.why for uid, each in self._without_place.items()}

    async def reconcile(self, _: str) -> float | None:
        """Allocate what can be. Returns in how many seconds to look again. Raises ApiError where the server did not answer."""
        self._written = {key: each for key, each in self._written.items() if not self._is_seen(key, each)}
        groups = dict(self._groups())
        self._without_place = {uid: each for uid, each in self._without_place.items() if uid in groups}
        self._alone &= groups.keys()
        if not groups or not self._handover.owned:
            return None
        now_s, basis = self._clock.monotonic(), (self._view.followed.version, self._handover.owned)
        if now_s < self._refused_until_s:
            return self._refused_until_s - now_s
        waits = {uid: self._waits_s(uid, basis, now_s) for uid in groups}
        due = {uid: group for uid, group in groups.items() if waits[uid] == 0.0}
        if due:
            batch = self._batch(due)
            placements = await self._ask(list(batch.values()))
            if placements is None:
                self._alone |= batch.keys()
            else:
                await self._write_all(batch, placements, basis)
            return 0.0
        rest_s = min(waits.values())
        return rest_s if rest_s < float("inf") else None  # a change of what is known wakes us

    def _groups(self) -> Iterator[tuple[str, ClaimGroup]]:
        """What waits for Draco, oldest first."""
        classes = {each.metadata.name: each for each in self._view.classes.store.values()}
        mine = {
            claim.metadata.key: claim
            for claim in self._view.claims.store.by_index(UNALLOCATED, True)
            if claim.metadata.key not in self._written and is_for_operator(claim, classes)
        }
        done: set[ObjectKey] = set()
        for key, claim in sorted(mine.items(), key=lambda one: (str(one[1].metadata.creation_timestamp), one[0])):
            if key in done:
                continue
            pod = self._pod_of(claim)
            if pod is None and any(owner.kind == "Pod" for owner in claim.metadata.owner_references):
                continue  # made for a pod that is not known yet, or needs it no more
            if pod is None:
                yield claim.metadata.uid, ClaimGroup([claim])
                continue
            if len(pod.claims) < len(pod.spec.resource_claims):
                continue  # the others are being made
            known = [found for each in pod.claims if (found := self._view.claims.store.get(each)) is not None]
            together = [mine[each.metadata.key] for each in known if each.metadata.key in mine]
            done |= {each.metadata.key for each in together}
            if len(known) == len(pod.claims):
                beside = [each for each in known if each.status.allocation]
                yield pod.metadata.uid, ClaimGroup(together, pod, beside, self.refusals.nodes(pod.metadata.uid))

    def _pod_of(self, claim: ResourceClaim) -> Pod | None:
        """The pod that decides where the claim goes: the oldest of those that wait for it."""
        pods = [each for each in self._view.pods_of(claim.metadata.key) if each.waits]
        return min(pods, key=lambda pod: (str(pod.metadata.creation_timestamp), pod.metadata.key), default=None)

    def _waits_s(self, uid: str, basis: _Basis, now_s: float) -> float:
        """In how many seconds to ask about the group; infinite as long as nothing changes."""
        asked = self._without_place.get(uid)
        if asked is None:
            return 0.0
        changed_s = float("inf") if asked.basis == basis else asked.at_s + _AGAIN_S
        return max(0.0, min(changed_s, asked.again_s) - now_s)

    def _batch(self, due: dict[str, ClaimGroup]) -> dict[str, ClaimGroup]:
        """The oldest group with those of its namespace that come next: a batch is on one tenant's budget."""
        oldest, first = next(iter(due.items()))
        if oldest in self._alone:
            return {oldest: first}
        namespace = first.claims[0].metadata.namespace
        same = [uid for uid, each in due.items() if each.claims[0].metadata.namespace == namespace]
        return {uid: due[uid] for uid in [each for each in same if each not in self._alone][:_GROUPS_AT_ONCE]}

    async def _ask(self, groups: list[ClaimGroup]) -> list[GroupPlacement] | None:
        """A placement for each; None if together they cost too much: then each is asked about alone."""
        question = PlaceClaims(groups, [*(each.claim for each in self._written.values()), *self._not_given_out()])
        namespace = groups[0].claims[0].metadata.namespace
        answered = await self._workers.ask(question, namespace, QueuePriority.FIRST)
        match answered.answer:
            case PlacementAnswer(placements=placements):
                return placements
            case OverBudget() | OutOfMemory() | Failed() as why if len(groups) == 1:
                return [GroupPlacement([], refusal(why, groups[0].claims, self._workers.long_cpu_s))]
        return None

    def _not_given_out(self) -> list[ResourceClaim]:
        """What is published as Draco's and is not to be given out, as a claim that has it all."""
        devices = self._handover.not_owned()
        if not devices:
            return []
        results = [
            DeviceRequestAllocationResult(request="", driver=each.driver, pool=each.pool, device=each.device)
            for each in devices
        ]
        taken = AllocationResult(devices=DeviceAllocationResult(results=results))
        meta = ObjectMeta(name=_NOT_GIVEN_OUT.name)
        return [ResourceClaim(metadata=meta, status=ResourceClaimStatus(allocation=taken))]

    async def _write_all(self, batch: dict[str, ClaimGroup], placements: list[GroupPlacement], basis: _Basis) -> None:
        now_s = self._clock.monotonic()
        limit = asyncio.Semaphore(_WRITES_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for (uid, group), placement in zip(batch.items(), placements, strict=True):
                if not placement.results:
                    again_s = self.refusals.until_s(uid) if group.without else float("inf")
                    self._without_place[uid] = _NoPlace(basis, now_s, placement.why_not, again_s)
                    continue
                self._without_place.pop(uid, None)
                for claim, result in zip(group.claims, placement.results, strict=True):
                    tasks.create_task(self._write(claim, result, limit), name=f"allocate {claim.metadata.key}")

    async def _write(self, claim: ResourceClaim, result: AllocationResult, limit: asyncio.Semaphore) -> None:
        meta, key = claim.metadata, claim.metadata.key
        stamped = msgspec.structs.replace(result, allocation_timestamp=self._clock.now())
        planned = allocated(claim, stamped)
        self._written[key] = _Written(planned, frozenset({meta.resource_version}))
        seen = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        try:
            async with limit:
                if FINALIZER not in meta.finalizers:
                    fresh = await self._client.patch(
                        CLAIMS, key, {"metadata": {**seen, "finalizers": [*meta.finalizers, FINALIZER]}}
                    )
                    seen["resourceVersion"] = fresh.metadata.resource_version
                    self._written[key] = _Written(planned, frozenset({meta.resource_version, seen["resourceVersion"]}))
                await self._client.patch(
                    CLAIMS, key, {"metadata": seen, "status": {"allocation": stamped}}, subresource="status"
                )
        except (NotFound, Conflict) as error:
            log.info("allocation.claim_changed", claim=str(key), error=str(error))
            del self._written[key]
        except (Forbidden, Invalid) as error:
            # Since 1.36 a missing right to resourceclaims/binding comes as Invalid too.
            self._refused_until_s = self._clock.monotonic() + _REFUSED_S
            log.warning("allocation.refused", claim=str(key), error=str(error), remedy=REMEDY)
            del self._written[key]
        except (ServerError, Unreachable) as error:
            log.info("allocation.unanswered", claim=str(key), error=str(error))
            await self._find_out(key, meta.uid)
        except ApiError:
            del self._written[key]
            raise
        else:
            self._count.inc()
            devices = listed(f"{each.device} of {each.pool}" for each in result.devices.results)
            log.info("allocation.written", claim=str(key), devices=devices)
            note = f"Draco allocated {devices}."
            self._events.record(
                reference(claim), type="Normal", reason=ALLOCATED_REASON, action=EVENT_ACTION, note=note
            )

    async def _find_out(self, key: ObjectKey, uid: str) -> None:
        """A write was not answered: until it is known that it was not made, it counts."""
        while True:
            try:
                found = await self._client.list(
                    CLAIMS, namespace=key.namespace, field_selector=f"metadata.name={key.name}"
                )
            except ApiError:
                await self._clock.sleep(1.0)
                continue
            if not any(each.metadata.uid == uid and each.status.allocation for each in found):
                self._written.pop(key, None)
            return

    def _is_seen(self, key: ObjectKey, written: _Written) -> bool:
        """Whether the watch has delivered the write, or something newer."""
        claim = self._view.claims.store.get(key)
        if claim is None or claim.metadata.uid != written.claim.metadata.uid:
            return True
        return claim.metadata.resource_version not in written.replaced


def _concern(pod: Pod) -> object:
    return pod.waits, pod.claims
