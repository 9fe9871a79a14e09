"""Creates, deletes and reports on the claims of DeviceReservations.

Owns these writes. `draco.reservations` decides them; `controller.allocation` decides who gets which devices, and writes all
allocations. A claim's name follows from its number, and it is deleted only at the version seen, so a new process continues
wherever a crashed one stopped. Kubernetes deletes the claims with their reservation, and keeps one in use until its last pod is
gone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from draco.allocation.ownership.leaks import ended_users
from draco.controller.mig.decisions import MigDecisions
from draco.controller.own_status import OwnStatus
from draco.controller.reservations import takeovers
from draco.controller.reservations.waiting import WaitingReasons
from draco.controller.view import BY_TAKER, RESERVED_IN, ClusterView, named
from draco.kube.connect.client import Client
from draco.kube.connect.retry import Pauses
from draco.kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, NamespaceTerminating, NotFound
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.kube.watch.store import Change
from draco.reservations.claims import claim_name, lost_claims, manifest_of, reservation_key
from draco.reservations.plan import ReservationPlan, ReservedClaims, UnusedClaims, idle_claims, plan
from draco.reservations.status import (
    NOT_ENABLED,
    ReservationFacts,
    full,
    lost_text,
    no_template,
    refused,
    status_of,
    used_up,
    warning_text,
)
from draco.reservations.takeover import LONGEST, kept_up
from draco.reservations.validity import (
    ReservationPriority,
    ReservationProblem,
    expires_at,
    is_expired,
    priority_of,
    problem_of,
)
from draco.resources.api.claims import ResourceClaim, ResourceClaimSpec
from draco.resources.api.draco import Allocator
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS, DEVICE_RESERVATIONS, PRIORITY_CLASSES
from draco.resources.texts import agreeing, listed
from draco.resources.windows import lasting

log = structlog.get_logger(__name__)

MOST_IN_NAMESPACE: Final = 1024
"""Maximum claims of reservations in one namespace: one small object must not create an unlimited number."""
_AT_ONCE: Final = 32
"""Claims that are created or deleted before others have their turn."""
_AGAIN_S: Final = 15.0
"""How often to check what a person has to fix."""
_REFUSED_LONGEST_S: Final = 120.0
"""Maximum backoff for claims that the API server refuses: a person must fix a quota or policy, too."""
_SOON_S: Final = 1.0
_LONGEST_WAIT_S: Final = 3600.0
_IDLE_S: Final = 60.0
"""How often to check a GPU's policy, where one limits how long reserved devices may be unused."""

IDLE_REASON = EventReason("ReservationUnused", "Reserving", "Warning")
LOST_REASON = EventReason("ReservationLost", "Reserving", "Warning")


class ReservationReconciler:
    """Reconciles one reservation at a time, by namespace and name. Without allocation it reports that and creates nothing."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        waiting: WaitingReasons,
        decisions: MigDecisions,
        events: EventRecorder,
        *,
        permitted: bool,
    ) -> None:
        self._client = client
        self._view = view
        self._waiting = waiting
        self._decisions = decisions
        self._events = events
        self._permitted = permitted
        self._statuses = OwnStatus(client, view.reservations)
        self._deleted: dict[str, str] = {}
        """Claims deleted here that the watch still shows: the deleted version by UID."""
        self._warned: set[str] = set()
        """UIDs of claims whose owners were warned that they soon lose their devices."""
        self._refused: Pauses[str] = Pauses(view.clock.monotonic, first_s=_AGAIN_S, longest_s=_REFUSED_LONGEST_S)
        """Reservations whose claims the API server refuses, by UID, with its message."""

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Call `wake` with every reservation that a change may affect."""

        def forget(change: Change[ResourceClaim]) -> None:
            if change.before is not None and change.after is None:
                self._deleted.pop(change.before.metadata.uid, None)
                self._warned.discard(change.before.metadata.uid)

        def all_keys(_: object) -> set[ObjectKey]:
            return self.all_keys()

        def of_supply(_: object) -> None:
            for key in self.all_keys():
                if takeovers.candidates_of(self._view, key):
                    wake(key)

        def of_reservation(change: Change[DeviceReservation]) -> None:
            if change.before is not None and change.differs(lambda each: each.spec):
                self._refused.forget(change.before.metadata.uid)
            wake(change.key)

        self._view.reservations.subscribe(of_reservation)
        self._view.claims.subscribe(forget)
        self._view.claims.subscribe_keys(wake, self._concerned)
        self._view.pods.subscribe_keys(
            wake, lambda pod: named(pod.metadata), reads=lambda pod: (pod.waits, pod.is_gated_by_others, pod.claims)
        )
        self._view.classes.subscribe_keys(wake, all_keys)
        self._view.mig_policies.subscribe_keys(
            wake, all_keys, reads=lambda each: (each.spec.allocator, each.spec.reservations)
        )
        self._view.slices.subscribe(of_supply, reads=lambda item: item.spec)
        self._view.rules.subscribe(of_supply, reads=lambda rule: rule.spec)
        self._waiting.when_known.add(wake)

    def all_keys(self) -> set[ObjectKey]:
        """Every reservation."""
        return {each.metadata.key for each in self._view.reservations.store.values()}

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Update the reservation's claims and status. Return seconds until the next look."""
        reservation = self._view.reservations.store.get(key)
        if reservation is None or reservation.metadata.deletion_timestamp is not None:
            self._waiting.forget(key)  # its claims are deleted with it
            return None
        if reservation in self._statuses.superseded:
            return None
        now = self._view.clock.now()
        claims = self._claims(reservation, now)
        idle = idle_claims(reservation, claims, self._longest_idle, now)
        claims = msgspec.structs.replace(claims, lost=idle.lost)
        spec, problem = await self._asked(reservation, claims)
        priority = await self._priority(reservation)
        if isinstance(priority, ReservationProblem):
            priority, problem = None, problem or priority
        planned = plan(reservation, claims, now, problem=problem, room=self._room(key.namespace))
        full_already = not problem and not planned.make and not planned.blocked and self._room(key.namespace) <= 0
        begun = takeovers.begun(self._view, reservation, claims, now) if self._permitted else []
        facts = ReservationFacts(
            problem=problem,
            full=full(key.namespace, MOST_IN_NAMESPACE) if full_already else "",
            begun=begun,
            priority=priority,
            idle=idle,
        )
        is_new = list(claims.takeovers) != reservation.status.takeovers or idle.lost != lost_claims(reservation)
        is_new = is_new or (priority is not None and reservation.status.priority is None)
        if begun or is_new:
            pass  # recorded before anything is done about it
        elif planned.make or planned.delete:
            if not await self._view.reservations.is_current(reservation):
                return _SOON_S
            await self._delete(planned.delete[:_AT_ONCE])
            refusal = await self._make(reservation, planned.make[:_AT_ONCE], spec)
            facts = msgspec.structs.replace(facts, refusal=refusal)
        elif not problem:
            facts = msgspec.structs.replace(facts, waits_for=self._why_waiting(reservation, claims, now))
        await self._say(reservation, claims, planned, facts)
        self._tell(reservation, idle)
        return self._look_again_s(reservation, claims, planned, facts, now)

    def _concerned(self, claim: ResourceClaim) -> Iterator[ObjectKey]:
        """The reservations that the claim belongs to, names, or takes over from."""
        meta = claim.metadata
        if key := reservation_key(claim):
            yield key
        for each in (meta, *(pod.metadata for pod in self._view.pods_of(meta.key))):
            yield from named(each)
        yield from (each.metadata.key for each in self._view.reservations.store.by_index(BY_TAKER, meta.uid))

    def _claims(self, reservation: DeviceReservation, now: datetime) -> ReservedClaims:
        claims = takeovers.own_claims(self._view, reservation)
        claims = msgspec.structs.replace(claims, own=[self._as_deleted(each) for each in claims.own])
        at_names = (
            self._view.claims.store.get(ObjectKey(reservation.metadata.namespace, each.claim))
            for each in reservation.status.takeovers
        )
        takers = {each.metadata.uid: each for each in at_names if each is not None}
        kept = kept_up(reservation, claims, takers, now)
        bereft = {each.uid for each in kept if each.allocation is None and takers[each.uid].waits}
        return msgspec.structs.replace(claims, takeovers=kept, bereft=bereft)

    def _as_deleted(self, claim: ResourceClaim) -> ResourceClaim:
        meta = claim.metadata
        if self._deleted.get(meta.uid) != meta.resource_version:
            self._deleted.pop(meta.uid, None)
            return claim
        return msgspec.structs.replace(
            claim, metadata=msgspec.structs.replace(meta, deletion_timestamp=self._view.clock.now())
        )

    async def _asked(
        self, reservation: DeviceReservation, claims: ReservedClaims
    ) -> tuple[ResourceClaimSpec, ReservationProblem | None]:
        """What each claim asks for, and what is wrong with it."""
        if not self._permitted:
            return ResourceClaimSpec(), NOT_ENABLED
        spec = reservation.spec.template.spec if reservation.spec.template else None
        if spec is None and len(claims.staying) >= reservation.spec.count:
            return claims.staying[0].spec, None  # all are made, whatever the template says now
        if spec is None:
            key = ObjectKey(reservation.metadata.namespace, reservation.spec.template_name)
            try:
                spec = (await self._client.get(CLAIM_TEMPLATES, key)).spec.spec
            except NotFound:
                return ResourceClaimSpec(), no_template(key.name)
        classes = self._view.classes_by_name
        return spec, problem_of(spec, classes)

    async def _priority(self, reservation: DeviceReservation) -> ReservationPriority | ReservationProblem | None:
        """The priority recorded at creation, or looked up now; None if nothing is reserved."""
        status = reservation.status
        if status.priority is not None:
            return ReservationPriority(status.priority, status.preemption_policy)
        if not self._permitted:
            return None
        return priority_of(reservation.spec.priority_class_name, await self._client.list(PRIORITY_CLASSES))

    def _longest_idle(self, claim: ResourceClaim) -> timedelta | None:
        """How long a claim may keep unused devices, by the policies of its GPUs."""
        policies = self._decisions.policies_of(claim.devices_held) if self._bounds_idleness else ()
        spoken = (each.spec for each in policies if each is not None and each.spec.allocator is Allocator.OPERATOR)
        return min(filter(None, (lasting(each.reservations.longest_idle) for each in spoken)), default=None)

    @property
    def _bounds_idleness(self) -> bool:
        return any(each.spec.reservations.longest_idle for each in self._view.mig_policies.store.values())

    def _tell(self, reservation: DeviceReservation, idle: UnusedClaims) -> None:
        """Warn once before claims lose their devices, and report those that have."""
        regarding = DEVICE_RESERVATIONS.reference(reservation.metadata)
        if [each for each in idle.warned if each.uid not in self._warned]:
            self._warned.update(each.uid for each in idle.warned)
            self._events.record(regarding, IDLE_REASON, warning_text(idle.warned))
        self._warned -= {each.uid for each in idle.idle} - {each.uid for each in idle.warned}
        if fresh := set(idle.lost) - set(lost_claims(reservation)):
            self._events.record(regarding, LOST_REASON, lost_text(len(fresh)))

    def _room(self, namespace: str) -> int:
        return MOST_IN_NAMESPACE - len(self._view.claims.store.by_index(RESERVED_IN, namespace))

    async def _delete(self, claims: Iterable[ResourceClaim]) -> None:
        """Delete the claims, each only at the version seen: one that is used now stays."""
        for claim in claims:
            meta = claim.metadata
            try:
                await self._client.delete(CLAIMS, meta.key, uid=meta.uid, resource_version=meta.resource_version)
            except NotFound:
                pass
            except Conflict:
                continue
            if self._view.claims.store.get(meta.key) is claim:  # otherwise the watch has already delivered it
                self._deleted[meta.uid] = meta.resource_version
            log.info("reservation.claim_deleted", claim=str(meta.key))

    async def _make(self, reservation: DeviceReservation, make: Sequence[int], spec: ResourceClaimSpec) -> str:
        """Create the claims. Return the message of the first refusal, or ""; a recent refusal is assumed to still hold."""
        uid = reservation.metadata.uid
        if self._refused.left_s(uid) > 0:
            return self._refused.by_key[uid].why
        for index in make:
            try:
                await self._client.create(CLAIMS, manifest_of(reservation, index, spec))
            except AlreadyExists:
                continue  # an earlier attempt whose answer was lost, or somebody else's claim: the watch tells which
            except NamespaceTerminating:
                return ""  # the reservation is deleted as well
            except (Forbidden, Invalid) as error:
                name = claim_name(reservation, index)
                text = refused(name, error.message)
                again_s = self._refused.begin(uid, text)
                log.info("reservation.claim_refused", claim=name, error=str(error), again_in_s=again_s)
                return text
            log.info(
                "reservation.claim_made", claim=f"{reservation.metadata.namespace}/{claim_name(reservation, index)}"
            )
        if make:
            self._refused.forget(uid)
        return ""

    def _why_waiting(self, reservation: DeviceReservation, claims: ReservedClaims, now: datetime) -> str:
        waiting = [each for each in claims.staying if each.waits]
        if not waiting or is_expired(reservation, now):
            self._waiting.forget(reservation.metadata.key)
            bereft = [each.claim for each in claims.takeovers if each.uid in claims.bereft]
            wait = agreeing(len(bereft), "waits", "wait")
            return f"{listed(bereft)} lost what was taken over, and now {wait} like any other claim." if bereft else ""
        ended = {each.metadata.key: ended_users(each, self._view.pods_of(each.metadata.key)) for each in waiting}
        first = min(waiting, key=lambda each: (bool(ended[each.metadata.key]), each.metadata.key))
        if users := ended[first.metadata.key]:
            return used_up(first, users[0])
        return self._waiting.of(reservation.metadata.key, first)

    async def _say(
        self, reservation: DeviceReservation, claims: ReservedClaims, planned: ReservationPlan, facts: ReservationFacts
    ) -> None:
        status = status_of(reservation, claims, planned, facts, self._view.clock.now())
        if status == reservation.status or not await self._view.reservations.is_current(reservation):
            return
        if status.message != reservation.status.message:
            log.info("reservation.stands", reservation=str(reservation.metadata.key), message=status.message)
        await self._statuses.write(reservation, status)

    def _look_again_s(
        self,
        reservation: DeviceReservation,
        claims: ReservedClaims,
        planned: ReservationPlan,
        facts: ReservationFacts,
        now: datetime,
    ) -> float | None:
        if facts.problem is NOT_ENABLED:
            return None
        if (planned.make or planned.delete) and not facts.refusal:
            return _SOON_S  # in case the watch does not wake us earlier
        if facts.refusal:
            return self._refused.left_s(reservation.metadata.uid)
        if facts.problem or facts.full or planned.blocked:
            return _AGAIN_S
        waits = [_IDLE_S] if self._bounds_idleness else []
        if facts.idle.next is not None:
            waits.append(max(0.0, (facts.idle.next - now).total_seconds()))
        end = expires_at(reservation)
        if end is not None and end > now:
            waits.append(min((end - now).total_seconds(), _LONGEST_WAIT_S))
        if any(each.waits for each in claims.staying):
            waits.append(self._waiting.next_s)
        if any(each.allocation is not None for each in claims.takeovers):
            waits.append(LONGEST.total_seconds())
        return min(waits, default=None)
