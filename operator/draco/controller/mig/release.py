"""Deallocates idle claims where their MigPolicy permits it.

Owns which claims may be moved, by the policies of their GPUs (`MovableClaims`), and the history this needs: since when a claim
has been idle, what was released recently, and which own writes the watch has not delivered. A release clears `status.allocation`,
as kube-controller-manager does when a claim's last consumer is gone, and the API server drops the device status with it;
`deallocation_writes` does the writing. Allocates nothing. `mig_policy.release_policy` decides which claims in the caller's way
may go.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec
import structlog
from prometheus_client import Counter

from draco.controller.deallocation_writes import Deallocations
from draco.controller.mig.decisions import MigDecisions
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ServerError, Unreachable
from draco.kube.events.events import EventRecorder
from draco.kube.events.notes import times_of
from draco.kube.events.shares import EventReason
from draco.kube.watch.store import Change
from draco.mig_policy.release_policy import IdleClaim, ReleaseDelays, ReleaseObstacle, obstacle, prepared_on, users
from draco.mig_policy.releases import ClaimRelease
from draco.reservations.claims import reservation_key, reserved_by
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuNode, IdleClaims, MigMode
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, EVENTS
from draco.resources.names import ATTRIBUTE_PARENT_UUID, FIELD_MANAGER_OPERATOR, DeviceKey

log = structlog.get_logger(__name__)

RELEASED_REASON = EventReason("ClaimReleased", "Repairing")
ROOM_REASON = EventReason("PlaceReleased", "Repairing")

_UNANSWERED_S = 10.0
"""How long a write without an answer may take to show up before it counts as failed."""
_LOOK_AGAIN_S = 2.0
"""How soon to check whether a write has arrived, if no event does so."""
_SETTLE_S = 30.0
"""Time for the scheduler to place the pod that something was released for, before more is released for others."""


class Movable(NamedTuple):
    """An idle claim, its GPUs' policy with what that permits, and the nodes of its devices."""

    policy: str
    most: int
    permit: IdleClaims
    nodes: tuple[GpuNode, ...]


class _Home(NamedTuple):
    """A device's GPU UUID ("" if it is no partition) and node."""

    gpu: str
    node: str


class MovableClaims:
    """Computed on each call; the decisions cache its inputs."""

    def __init__(self, view: ClusterView, decisions: MigDecisions) -> None:
        self._view = view
        self._decisions = decisions

    def among(self, claims: Iterable[ObjectKey]) -> dict[ObjectKey, Movable]:
        """The idle claims among `claims` whose devices are all partitions of GPUs of one policy that permits repair."""
        repairs = {each.name: each.policy.spec.repair for each in self._decisions.rules}
        movable: dict[ObjectKey, Movable] = {}
        for key in claims:
            claim = self._view.claims.store.get(key)
            if (
                claim is None
                or claim.status.allocation is None
                or claim.status.reserved_for
                or self._is_reserved(claim)
            ):
                continue
            homes = {self._home(device) for device in claim.devices_held}
            policies = {self._policy_of(home) for home in homes}
            policy = next(iter(policies)) if len(policies) == 1 else ""
            if policy in repairs and repairs[policy].max_moves > 0:
                names = sorted({ObjectKey("", home.node) for home in homes})
                nodes = tuple(node for name in names if (node := self._view.gpu_nodes.store.get(name)))
                movable[key] = Movable(policy, repairs[policy].max_moves, repairs[policy].idle_claims, nodes)
        return movable

    def _is_reserved(self, claim: ResourceClaim) -> bool:
        """Whether the claim belongs to a DeviceReservation, which keeps devices idle on purpose."""
        key = reservation_key(claim)
        reservation = self._view.reservations.store.get(key) if key else None
        return reservation is not None and reservation.metadata.uid == reserved_by(claim)

    def _policy_of(self, home: _Home) -> str:
        """The policy that partitions the GPU on demand; "" if none."""
        decision = self._decisions.of(home.node) if home.gpu else None
        for gpu in decision.gpus if decision else ():
            if gpu.uuid == home.gpu and gpu.wanted is not None and gpu.wanted.mode is MigMode.DYNAMIC:
                return gpu.policy
        return ""

    def _home(self, device: DeviceKey) -> _Home:
        found = self._view.published(device)
        if found is None:
            return _Home("", "")
        published, node = found
        return _Home(published.text(ATTRIBUTE_PARENT_UUID, device.driver), node)


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """A write that the watch has not delivered: the version it replaces, and what to report once it is certain."""

    uid: str
    replaced: str
    until_s: float
    announce: Callable[[], None] | None
    pod: ObjectKey


class ClaimReleases:
    """Releases one plan at a time, claim by claim, each write on top of exactly the version seen."""

    def __init__(
        self, client: Client, view: ClusterView, events: EventRecorder, *, count: Counter, patience: ReleaseDelays
    ) -> None:
        self._client = client
        self._view = view
        self._events = events
        self._count = count
        self._patience = patience
        self._deallocations = Deallocations(client, view)
        self._idle_since: dict[ObjectKey, float] = {}
        self._released: dict[str, float] = {}  # time by UID
        self._latest: dict[str, tuple[float, str]] = {}  # by policy
        self._written: dict[ObjectKey, _Written] = {}
        self._awaited: tuple[float, ObjectKey] | None = None  # the pod something was released for, and until when
        view.claims.subscribe(self._follow)

    async def adopt(self) -> None:
        """Learn from the former leader's Events what was released recently. Raises ApiError."""
        selector = f"reason={RELEASED_REASON.name},reportingComponent={FIELD_MANAGER_OPERATOR}"
        for event in await self._client.list(EVENTS, field_selector=selector):
            _, last = times_of(event)
            if event.involved_object is not None and last is not None:
                age_s = max(0.0, (self._view.clock.now() - last).total_seconds())
                self._released.setdefault(event.involved_object.uid, self._view.clock.monotonic() - age_s)

    def refusal(self, key: ObjectKey) -> str:
        """The API server's last refusal to release the claim, as a sentence; "" without one."""
        claim = self._view.claims.store.get(key)
        return self._deallocations.refusal(claim) if claim is not None else ""

    def latest(self) -> Mapping[str, str]:
        """The latest release per policy as a sentence, while it is recent."""
        now_s, rest_s = self._view.clock.monotonic(), self._patience.rest_s
        self._latest = {name: told for name, told in self._latest.items() if now_s - told[0] < rest_s}
        return {name: text for name, (_, text) in self._latest.items()}

    def obstacle(self, claim: ResourceClaim, movable: Movable) -> ReleaseObstacle | None:
        """Why the claim must not be released now; None if it may."""
        key, now_s = claim.metadata.key, self._view.clock.monotonic()
        if (left_s := self._deallocations.left_s(claim)) > 0:
            return ReleaseObstacle(text="the API server refused it", again_s=left_s)
        released_s = self._released.get(claim.metadata.uid)
        idle = IdleClaim(
            claim=claim,
            policy=movable.policy,
            permit=movable.permit,
            idle_s=now_s - self._idle_since.get(key, now_s),
            released_s=None if released_s is None else now_s - released_s,
            users=users(self._view.pods_of(key)),
            prepared_on=prepared_on(claim, movable.nodes),
        )
        return obstacle(idle, self._patience)

    @property
    def in_flight(self) -> bool:
        """Whether a write of ours has not arrived on the watch: until then the view shows the old state."""
        self._written = {key: written for key, written in self._written.items() if not self._seen(key, written)}
        return bool(self._written)

    def pause_s(self) -> float:
        """Seconds until something may be released; 0 for now. A watch event may end the pause early."""
        now_s = self._view.clock.monotonic()
        self._released = {uid: at_s for uid, at_s in self._released.items() if now_s - at_s < self._patience.rest_s}
        waits = [_LOOK_AGAIN_S if self.in_flight else 0.0]
        if self._awaited is not None:
            until_s, pod = self._awaited
            waiting = self._view.pods.store.get(pod)
            if waiting is not None and waiting.waits:
                waits.append(until_s - now_s)
            else:
                self._awaited = None
        return max(0.0, *waits)

    async def carry_out(
        self, release: ClaimRelease, policies: Mapping[ObjectKey, str], may_go: Callable[[ObjectKey], bool]
    ) -> bool:
        """Release a plan's claims as their policies permit, while `may_go` agrees for each. Return whether all were released.

        The next look finds what is left, as it does after a crash. Raises ApiError if a retry may help.
        """
        for key in release.claims:
            claim = self._view.claims.store.get(key)
            if claim is None or not may_go(key) or not await self._release(claim, release, policies[key]):
                return False
        self._give_time(release.pod)
        return True

    async def _release(self, claim: ResourceClaim, release: ClaimRelease, policy: str) -> bool:
        meta, key, now_s = claim.metadata, claim.metadata.key, self._view.clock.monotonic()
        written = _Written(
            uid=meta.uid,
            replaced=meta.resource_version,
            until_s=now_s + _UNANSWERED_S,
            announce=partial(self._announce, claim, release, policy),
            pod=release.pod,
        )
        try:
            if not await self._deallocations.take_back(claim):
                return False
        except (ServerError, Unreachable):
            self._written[key] = written  # the write may have arrived nevertheless
            raise
        self._written[key] = msgspec.structs.replace(written, until_s=float("inf"), announce=None)
        self._announce(claim, release, policy)
        return True

    def _seen(self, key: ObjectKey, written: _Written) -> bool:
        """Whether the watch has delivered the write, or something newer. Reports a write of unknown outcome if it was made."""
        claim = self._view.claims.store.get(key)
        if claim is None or claim.metadata.uid != written.uid:
            return True
        if claim.metadata.resource_version == written.replaced:
            return self._view.clock.monotonic() >= written.until_s
        if written.announce is not None and claim.status.allocation is None:
            written.announce()
            self._give_time(written.pod)
        return True

    def _give_time(self, pod: ObjectKey) -> None:
        self._awaited = (self._view.clock.monotonic() + _SETTLE_S, pod)

    def _announce(self, claim: ResourceClaim, release: ClaimRelease, policy: str) -> None:
        key, now_s = claim.metadata.key, self._view.clock.monotonic()
        self._released[claim.metadata.uid] = now_s
        self._latest[policy] = (now_s, f"Idle claim {key} was released for pod {release.pod}.")
        self._count.labels(policy).inc()
        held = ", ".join(release.devices.get(key, ()))
        log.info("repair.released", claim=str(key), devices=held, pod=str(release.pod), policy=policy)
        self._events.record(
            CLAIMS.reference(claim.metadata),
            RELEASED_REASON,
            f"Released for pod {release.pod}, as MigPolicy {policy} permits: it held {held}, and no pod used it. It is "
            "allocated again when a pod uses it.",
        )
        for each in release.waiting:
            if (waiting := self._view.claims.store.get(each)) is not None:
                self._events.record(
                    CLAIMS.reference(waiting.metadata),
                    ROOM_REASON,
                    f"Idle claim {key} was released, as MigPolicy {policy} permits: pod {release.pod} fits on node "
                    f"{release.node} now.",
                )

    def _follow(self, change: Change[ResourceClaim]) -> None:
        after, before = change.after, change.before
        if after is None or after.status.allocation is None or after.status.reserved_for:
            self._idle_since.pop(change.key, None)
        elif before is None or before.status.allocation != after.status.allocation:
            self._idle_since[change.key] = self._view.clock.monotonic()
        else:
            self._idle_since.setdefault(change.key, self._view.clock.monotonic())
