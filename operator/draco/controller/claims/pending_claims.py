"""Reports why claims stay pending: one Event on the claim and one on the pod that waits for it, kept up to date.

Owns which pods wait and since when, which object gets which Event, when it is withdrawn, and the count of waiting claims by main
cause. All claims of a pod are explained together, since one node must satisfy them all. `explaining` decides when to explain
again. Each Event is reconciled on its own, so a new process corrects whatever a crashed one left.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import chain
from typing import NamedTuple

import structlog

from draco.allocation.extended_resources import claim_for
from draco.allocation.pod_claims import known_claims_of, uses_devices
from draco.controller.claims.explaining import Explanations, PodWithClaims
from draco.controller.limits.enforcement import LimitGuard
from draco.controller.view import ClusterView
from draco.controller.workers.messages import PendingAnswer, UnmetDevices
from draco.controller.workers.pool import Workers
from draco.explanation.model import PendingReason
from draco.kube.connect.retry import attempted
from draco.kube.events.notes import Notes, NotesByKey
from draco.kube.events.shares import EventReason
from draco.kube.watch.store import Change
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS

log = structlog.get_logger(__name__)

EVENT_REASON = EventReason("ClaimPending", "Allocating", "Warning")


class PendingSubject(NamedTuple):
    """The pod or claim that an Event is about."""

    kind: str
    key: ObjectKey

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class PendingClaims:
    """Reconciles one Event at a time."""

    def __init__(
        self,
        view: ClusterView,
        notes: Notes,
        *,
        pending_after_s: float,
        minor: int | None,
        workers: Workers,
        refused: LimitGuard | None = None,
    ) -> None:
        self._view = view
        self._notes = NotesByKey(notes, lambda each: PendingSubject(each.kind, ObjectKey(each.namespace, each.name)))
        self._pending_after_s = pending_after_s
        self._refused = refused
        self._explanations = Explanations(view.followed, workers, clock=view.clock, minor=minor)
        self._adopted = asyncio.Event()
        self._reasons: dict[ObjectKey, str] = {}
        self._unmet: dict[ObjectKey, list[UnmetDevices]] = {}
        self._fit_since_s: dict[ObjectKey, float] = {}  # by pod
        self._known_classes: Mapping[str, DeviceClass] | None = None

    def subscribe(self, wake: Callable[[PendingSubject], None]) -> None:
        """Call `wake` with every pod and claim that their changes may affect."""

        def wake_for_refused(claim: ObjectKey) -> None:
            for subject in self._users(claim):
                wake(subject)

        self._view.claims.subscribe_keys(wake, lambda claim: self._users(claim.metadata.key), reads=_of_claim)
        self._view.pods.subscribe_keys(
            wake, lambda pod: _subjects(pod) if uses_devices(pod, self._classes) else (), reads=_of_pod
        )
        self._view.classes.subscribe(lambda change: self._wake_for_class(change, wake))
        if self._refused is not None:
            self._refused.listeners.add(wake_for_refused)

    def all_keys(self) -> set[PendingSubject]:
        """Every waiting pod, and its claims."""
        pods = [pod for pod in self._view.pods.store.values() if self._left_s(pod) is not None]
        return {subject for pod in pods for subject in _subjects(pod)}

    def reasons(self) -> dict[str, int]:
        """Waiting claims by main cause."""
        return Counter(self._reasons.values())

    def unmet(self) -> dict[tuple[str, str, str], float]:
        """Devices, by class, product and profile, that waiting claims want and no node could provide even when idle."""
        found: Counter[tuple[str, str, str]] = Counter()
        for each in chain.from_iterable(self._unmet.values()):
            found[each.device_class, each.product, each.profile] += each.count
        return {**found}

    def most_unmet(self) -> dict[tuple[str, str, str], float]:
        """Per key, the most that one claim wants on one node."""
        found: dict[tuple[str, str, str], float] = {}
        for each in chain.from_iterable(self._unmet.values()):
            key = (each.device_class, each.product, each.profile)
            found[key] = max(found.get(key, 0), each.count)
        return found

    async def follow(self, wake: Callable[[PendingSubject], None], backlog: Callable[[], int]) -> None:
        """Adopt a former leader's Events, then call `wake` whenever a change elsewhere alters an explanation."""
        # If the old Events are unknown, everything is reported again; at worst, they expire after an hour.
        for subject in await attempted("events.not_adopted", self._notes.adopt, clock=self._view.clock) or ():
            wake(subject)
        self._adopted.set()

        def changed(pod: Pod) -> None:
            for subject in _subjects(pod):
                wake(subject)

        await self._explanations.keep_fresh(self._still_waiting, changed, backlog)

    async def reconcile(self, subject: PendingSubject) -> float | None:
        """Report why the subject waits, or withdraw the Event when it no longer does."""
        await self._adopted.wait()
        if subject.kind == PODS.kind:
            return await self._reconcile_pod(subject)
        return await self._reconcile_claim(subject)

    async def _reconcile_pod(self, subject: PendingSubject) -> float | None:
        pod = self._view.pods.store.get(subject.key)
        left_s = self._left_s(pod) if pod else None
        if pod is None or left_s is None:
            self._explanations.forget(subject.key)
            self._fit_since_s.pop(subject.key, None)
            await self._notes.withdraw(subject)
            return None
        if left_s > 0:
            return left_s
        explanation = self._explained(pod)
        if explanation is None:
            return None  # the old Event stays until an answer wakes us
        if (until_s := self._unlasting_s(pod, explanation)) > 0:
            return until_s
        gate_s = self._gate_s(pod) if explanation.reason == PendingReason.GATED else 0.0
        if explanation.reason == PendingReason.ALLOCATED or gate_s:
            await self._notes.withdraw(subject)
            return gate_s or None
        return await self._notes.say(PODS.reference(pod.metadata), explanation.text)

    async def _reconcile_claim(self, subject: PendingSubject) -> float | None:
        claim = self._view.claims.store.get(subject.key)
        explanation = None
        wait_s: float | None = None
        if claim is not None and claim.status.allocation is None and claim.metadata.deletion_timestamp is None:
            # Of several pods that wait for a claim, the claim's Event explains the first by name.
            pods = sorted(self._view.pending_pods(subject.key), key=lambda pod: pod.metadata.name)
            left = {pod.metadata.name: left_s for pod in pods if (left_s := self._left_s(pod)) is not None}
            due = next((pod for pod in pods if left.get(pod.metadata.name, 1.0) <= 0), None)
            wait_s = min(left.values(), default=None)
            if due:
                explanation = self._explained(due)
                if explanation is None:
                    return None  # the old Event stays until an answer wakes us
                if (until_s := self._unlasting_s(due, explanation)) > 0:
                    return until_s
                keys = [each.metadata.key for each in self._with_claims(due)[1]]
                self._unmet[subject.key] = [each for each in explanation.unmet if keys[each.claim] == subject.key]
        if claim is None or explanation is None or explanation.reason == PendingReason.ALLOCATED:
            self._reasons.pop(subject.key, None)
            self._unmet.pop(subject.key, None)
            await self._notes.withdraw(subject)
            return wait_s if wait_s and wait_s > 0 else None
        if subject.key not in self._reasons:
            log.info("claim.pending", claim=str(subject.key), reason=explanation.reason, causes=explanation.text)
        self._reasons[subject.key] = explanation.reason
        return await self._notes.say(CLAIMS.reference(claim.metadata), explanation.text)

    def _explained(self, pod: Pod) -> PendingAnswer | None:
        """Why the pod waits. A limit comes first: no device would help."""
        for claim in pod.claims if self._refused is not None else ():
            if self._refused is not None and (why := self._refused.why_not(claim)):
                return PendingAnswer(why, PendingReason.LIMIT_REACHED)
        return self._explanations.of(*self._with_claims(pod))

    def _unlasting_s(self, pod: Pod, explanation: PendingAnswer) -> float:
        """Seconds to keep the old report. Lacking nothing is reported only if it lasts: else all pods report a freed device."""
        key, now_s = pod.metadata.key, self._view.clock.monotonic()
        if explanation.reason != PendingReason.FITS:
            self._fit_since_s.pop(key, None)
            return 0.0
        return self._fit_since_s.setdefault(key, now_s) + self._pending_after_s - now_s

    def _with_claims(self, pod: Pod) -> PodWithClaims:
        return pod, known_claims_of(pod, self._view.claims.store, self._classes)

    def _still_waiting(self, key: ObjectKey) -> PodWithClaims | None:
        pod = self._view.pods.store.get(key)
        return self._with_claims(pod) if pod and self._left_s(pod) is not None else None

    def _left_s(self, pod: Pod) -> float | None:
        """Seconds until the pod counts as waiting for devices; None if it waits for none."""
        if not (pod.waits or self._bypasses(pod)) or not uses_devices(pod, self._classes):
            return None
        if pod.is_gated_by_others:
            return None  # nobody considers it
        if pod.is_refused:
            return 0.0
        scheduled = pod.scheduled
        times = [pod.metadata.creation_timestamp, scheduled.last_transition_time if scheduled else None]
        since = max((each for each in times if each is not None), default=None)
        return self._to_wait_s(since) if since else 0.0

    def _gate_s(self, pod: Pod) -> float:
        """Seconds for which a remaining gate is ignored: the pod has only just got its devices."""
        claims = (self._view.claims.store.get(key) for key in pod.claims)
        allocations = (claim.status.allocation for claim in claims if claim is not None)
        times = [each.allocation_timestamp for each in allocations if each is not None and each.allocation_timestamp]
        return max(0.0, self._to_wait_s(max(times))) if times else 0.0

    def _to_wait_s(self, since: datetime) -> float:
        """Seconds until something that began at `since` is worth reporting; negative afterwards."""
        return self._pending_after_s - (self._view.clock.now() - since).total_seconds()

    def _bypasses(self, pod: Pod) -> bool:
        """Whether its author set its node, so that nobody will allocate its pending claim."""
        if not pod.spec.node_name or not pod.pending:
            return False
        claims = (self._view.claims.store.get(key) for key in pod.claims)
        return any(claim is not None and claim.status.allocation is None for claim in claims)

    @property
    def _classes(self) -> Mapping[str, DeviceClass]:
        if self._known_classes is None:
            self._known_classes = self._view.classes_by_name
        return self._known_classes

    def _users(self, claim: ObjectKey) -> list[PendingSubject]:
        pods = self._view.pods_of(claim)
        return [PendingSubject(CLAIMS.kind, claim), *(PendingSubject(PODS.kind, pod.metadata.key) for pod in pods)]

    def _wake_for_class(self, change: Change[DeviceClass], wake: Callable[[PendingSubject], None]) -> None:
        """Wake the pods that ask for the extended resource of the class, old or new."""
        before = self._classes
        self._known_classes = None
        if not change.differs(lambda each: each.spec.extended_resource_name):
            return  # other changes of it are explained like any change
        for pod in self._view.pods.store.values():
            if pod.waits and (claim_for(pod, before) or claim_for(pod, self._classes)):
                wake(PendingSubject(PODS.kind, pod.metadata.key))


def _subjects(pod: Pod) -> list[PendingSubject]:
    return [PendingSubject(PODS.kind, pod.metadata.key), *(PendingSubject(CLAIMS.kind, key) for key in pod.claims)]


def _of_pod(pod: Pod) -> tuple[object, ...]:
    """The fields that matter for its claims; its status changes often."""
    said = pod.scheduled
    scheduled = said and (said.status, said.reason, said.message)
    return (pod.spec.node_name, pod.claims, pod.metadata.deletion_timestamp, pod.status.phase, scheduled, pod.spec)


def _of_claim(claim: ResourceClaim) -> tuple[object, ...]:
    return (claim.status, claim.metadata.deletion_timestamp)
