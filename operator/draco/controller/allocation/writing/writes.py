"""Writes allocations, and remembers writes in flight, which nothing else knows until the watch delivers them.

Owns the two writes of an allocation: the finalizer of every allocated claim, and the allocation, each on top of exactly the
version seen. A write without an answer may still take effect, so its devices stay taken, and it is repeated on top of the same
version until the API server answers: at most one of the attempts can succeed.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
import structlog
from prometheus_client import Counter

from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.connect.retry import Pauses, doubling_s
from draco.kube.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.placing.groups.group import allocated
from draco.resources.api.claims import AllocationResult, ResourceClaim
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import CLAIMS
from draco.resources.texts import agreeing, listed

log = structlog.get_logger(__name__)

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""On every allocated claim; kube-controller-manager removes it on deallocation."""
ALLOCATED_REASON = EventReason("Allocated", "Allocating")
REMEDY = "set the chart's value operator.allocate to true, which gives it the right and the admission policies"

_REFUSED_S, _REFUSED_LONGEST_S = 5.0, 60.0
"""Backoff of the refused claim only: a person must fix a role, but a policy may be late, or apply to one namespace."""
_OUTDATED_S, _OUTDATED_LONGEST_S = 0.05, 5.0
"""Backoff after a conflict or a deleted claim: the watch usually delivers the change in a moment."""
_LONGEST_S = 10.0
"""Maximum time between attempts of an unanswered write."""
_IN_TRANSIT_S = 60.0
"""The API server drops a request after this time, even when the client no longer waits."""


class _Version(NamedTuple):
    """A claim version that the watch delivered."""

    key: ObjectKey
    version: str


class _Write:
    """An allocation in flight: the claim with its allocation, and the versions it replaces."""

    def __init__(self, claim: ResourceClaim, planned: ResourceClaim, version: str, at_s: float) -> None:
        self.planned = planned
        self.version = version
        """The version that the allocation is written on top of."""
        self.is_protected = FINALIZER in claim.metadata.finalizers or version != claim.metadata.resource_version
        """Whether the claim has the finalizer at that version."""
        self.replaced = {claim.metadata.resource_version, version}
        self.at_s = at_s
        self.tries = 0
        self.again_s: float | None = None
        """When to retry; None if no retry is needed."""

    @property
    def key(self) -> ObjectKey:
        return self.planned.metadata.key

    @property
    def seen_as(self) -> _Version:
        return _Version(self.key, self.planned.metadata.resource_version)

    @property
    def seen(self) -> dict[str, str]:
        return {"uid": self.planned.metadata.uid, "resourceVersion": self.version}


class _Refused(NamedTuple):
    """A refused claim, by UID, so that a later claim of the same name is not meant."""

    key: ObjectKey
    uid: str


class AllocationWrites:
    """Writes by claim. A claim in here counts as allocated, whatever the watch says."""

    def __init__(self, client: Client, view: ClusterView, events: EventRecorder, *, count: Counter) -> None:
        self._client = client
        self._view = view
        self._events = events
        self._count = count
        self.ended = 0
        """Number of finished writes, successful or not: what they held is now free, or as the watch says."""
        self._writes: dict[ObjectKey, _Write] = {}
        self._protected: dict[ObjectKey, tuple[str, str]] = {}
        """Claims whose finalizer the watch has not delivered: the versions without and with it."""
        self._refused: Pauses[_Refused] = Pauses(view.clock.monotonic, first_s=_REFUSED_S, longest_s=_REFUSED_LONGEST_S)
        self._outdated: Pauses[_Version] = Pauses(
            view.clock.monotonic, first_s=_OUTDATED_S, longest_s=_OUTDATED_LONGEST_S
        )

    @property
    def trouble(self) -> str:
        """What keeps Draco from allocating, and the fix; "" without a known problem."""
        refused = self._refused.by_key
        if not refused:
            return ""
        (key, _), last = max(refused.items(), key=lambda each: each[1].until_s)
        claims = f"{agreeing(len(refused), 'claim', 'claims')} {listed([key], total=len(refused))}"
        return f"The API server does not let Draco allocate {claims}: {REMEDY} ({last.why})."

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._writes

    @property
    def claims(self) -> list[ResourceClaim]:
        """The claims as they will be once everything is written."""
        return [each.planned for each in self._writes.values()]

    def is_refused(self, key: ObjectKey) -> bool:
        """Whether the API server refused the claim's allocation and the backoff has not passed."""
        claim = self._view.claims.store.get(key)
        return claim is not None and self._refused.left_s(_Refused(key, claim.metadata.uid)) > 0

    def is_outdated(self, key: ObjectKey) -> bool:
        """Whether a write found the claim changed and the backoff has not passed."""
        claim = self._view.claims.store.get(key)
        return claim is not None and self._outdated.left_s(_Version(key, claim.metadata.resource_version)) > 0

    def remembers(self, key: ObjectKey) -> bool:
        """Whether a write is in flight or ended in a conflict: the next watch event of the claim decides its end."""
        return key in self._writes or any(each.key == key for each in self._outdated.by_key)

    def next_s(self, since_s: float) -> float:
        """Seconds until a write must be retried; infinite if all are answered. `since_s` as in Pauses."""
        now_s = self._view.clock.monotonic()
        unanswered = [max(0.0, each.again_s - now_s) for each in self._writes.values() if each.again_s is not None]
        return min([*unanswered, self._refused.next_s(since_s), self._outdated.next_s(since_s)])

    def unanswered(self) -> Iterable[ObjectKey]:
        """Claims whose write must be retried now."""
        now_s = self._view.clock.monotonic()
        return [key for key, each in self._writes.items() if each.again_s is not None and each.again_s <= now_s]

    def settle(self) -> None:
        """Forget writes that the watch has delivered or overtaken."""
        for key in [key for key, each in self._writes.items() if self._is_delivered(each)]:
            self._end(key)
        self._protected = {
            key: (seen, fresh)
            for key, (seen, fresh) in self._protected.items()
            if (claim := self._view.claims.store.get(key)) is not None and claim.metadata.resource_version == seen
        }
        for each in [each for each in self._refused.by_key if not self._waits(each)]:
            self._refused.forget(each)
        for seen in [each for each in self._outdated.by_key if not self._is_last(each)]:
            self._outdated.forget(seen)

    async def protect(self, claim: ResourceClaim) -> None:
        """Write the finalizer ahead, while placement is decided. Raises nothing.

        A claim that finds no place keeps it; kube-controller-manager removes it on deletion. If the API server refuses it, the
        claim counts as refused. `write` meets any other failure as well.
        """
        meta = claim.metadata
        if FINALIZER in meta.finalizers or meta.key in self._protected:
            return
        try:
            self._protected[meta.key] = meta.resource_version, await self._add_finalizer(meta)
        except (Forbidden, Invalid) as error:
            self._refuse(meta, error)
        except ApiError as error:
            log.debug("allocation.not_protected", claim=str(meta.key), error=str(error))

    def may_write(self, claim: ResourceClaim) -> bool:
        """Whether the claim still waits, as far as the watch has delivered, and was not just refused."""
        key, uid = claim.metadata.key, claim.metadata.uid
        known = self._view.claims.store.get(key)
        return known is not None and known.metadata.uid == uid and known.waits and not self.is_refused(key)

    async def write(self, claim: ResourceClaim, result: AllocationResult) -> None:
        """Allocate the claim. Raises nothing: whether the claim is still in here tells the outcome."""
        now_s, seen = self._view.clock.monotonic(), claim.metadata.resource_version
        stamped = msgspec.structs.replace(result, allocation_timestamp=self._view.clock.now())
        before, fresh = self._protected.get(claim.metadata.key, (seen, seen))
        version = fresh if before == seen else seen
        self._writes[claim.metadata.key] = _Write(claim, allocated(claim, stamped), version, now_s)
        await self.again(claim.metadata.key)

    async def again(self, key: ObjectKey) -> None:
        """Try the write, for the first time or again."""
        write = self._writes.get(key)
        if write is None:
            return
        write.tries += 1
        try:
            await self._make(write)
        except NotFound:
            self._drop(write, "it is gone")
            self._outdated.begin(write.seen_as, "")
        except (Conflict, Forbidden, Invalid) as error:
            await self._hear_refusal(write, error)
        except ApiError as error:
            self._postpone(write, error)
        else:
            self._announce(write)

    async def _make(self, write: _Write) -> None:
        if not write.is_protected:
            write.version, write.is_protected = await self._add_finalizer(write.planned.metadata), True
            write.replaced.add(write.version)
        status = {"allocation": write.planned.status.allocation}
        await self._client.patch(CLAIMS, write.key, {"metadata": write.seen, "status": status}, subresource="status")

    async def _add_finalizer(self, meta: ObjectMeta) -> str:
        """Return the version with the finalizer."""
        body = {**meta.as_seen, "finalizers": [*meta.finalizers, FINALIZER]}
        return (await self._client.patch(CLAIMS, meta.key, {"metadata": body})).metadata.resource_version

    async def _hear_refusal(self, write: _Write, error: Conflict | Forbidden | Invalid) -> None:
        """Handle a refusal, unless an earlier unanswered attempt may have caused it or may still take effect."""
        if write.tries > 1:
            try:
                if await self._is_made(write):
                    self._announce(write)
                    return
            except ApiError as unknown:
                self._postpone(write, unknown)
                return
            if not isinstance(error, Conflict) and self._view.clock.monotonic() - write.at_s < _IN_TRANSIT_S:
                self._postpone(write, error)
                return
        self._drop(write, str(error))
        if isinstance(error, Conflict):
            self._outdated.begin(write.seen_as, "")
        else:
            self._refuse(write.planned.metadata, error)

    def _refuse(self, meta: ObjectMeta, error: Forbidden | Invalid) -> None:
        # Since 1.36 a missing right to resourceclaims/binding also comes as Invalid.
        pause_s = self._refused.begin(_Refused(meta.key, meta.uid), str(error))
        log.warning("allocation.refused", claim=str(meta.key), error=str(error), remedy=REMEDY, again_in_s=pause_s)

    async def _is_made(self, write: _Write) -> bool:
        found = await self._client.list(
            CLAIMS, namespace=write.key.namespace, field_selector=f"metadata.name={write.key.name}"
        )
        return any(
            each.metadata.uid == write.planned.metadata.uid and each.results == write.planned.results for each in found
        )

    def _drop(self, write: _Write, why: str) -> None:
        log.info("allocation.dropped", claim=str(write.key), why=why)
        self._end(write.key)

    def _end(self, key: ObjectKey) -> None:
        if self._writes.pop(key, None) is not None:
            self.ended += 1

    def _postpone(self, write: _Write, error: ApiError) -> None:
        pause_s = doubling_s(1.0, write.tries - 1, _LONGEST_S)
        write.again_s = self._view.clock.monotonic() + pause_s
        log.info("allocation.unanswered", claim=str(write.key), error=str(error), again_in_s=pause_s)

    def _announce(self, write: _Write) -> None:
        write.again_s = None
        self._refused.forget(_Refused(write.key, write.planned.metadata.uid))
        self._count.inc()
        devices = listed(f"{each.device} of {each.pool}" for each in write.planned.results)
        log.info("allocation.written", claim=str(write.key), devices=devices)
        self._events.record(CLAIMS.reference(write.planned.metadata), ALLOCATED_REASON, f"Draco allocated {devices}.")

    def _is_last(self, seen: _Version) -> bool:
        claim = self._view.claims.store.get(seen.key)
        return claim is not None and claim.metadata.resource_version == seen.version

    def _waits(self, refused: _Refused) -> bool:
        claim = self._view.claims.store.get(refused.key)
        return claim is not None and claim.metadata.uid == refused.uid and claim.waits

    def _is_delivered(self, write: _Write) -> bool:
        claim = self._view.claims.store.get(write.key)
        if claim is None or claim.metadata.uid != write.planned.metadata.uid:
            return write.again_s is None or claim is not None
        return claim.metadata.resource_version not in write.replaced
