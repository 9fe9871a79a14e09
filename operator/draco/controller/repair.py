"""Says which claims that nobody uses stand in the way of a pod, on GPUs whose MigPolicy lets claims be moved.

Owns one Event on each waiting claim and on each idle one, kept true, and the sentence that the policy passes on. Deletes nothing:
an idle claim may be somebody's reservation, so it is for people, or their tools, to let go of it. Idle instances without a claim
need none of this, they give way by themselves.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping
from random import Random

import structlog

from draco.controller.mig_decisions import MigDecisions
from draco.controller.view import ClusterView
from draco.kube.clock import Clock
from draco.kube.errors import ApiError
from draco.kube.notes import Notes
from draco.kube.retry import retry
from draco.mig_policy.releases import Release, Searches, plan_release
from draco.resources.claims import ResourceClaim
from draco.resources.core import Pod
from draco.resources.draco import MigMode
from draco.resources.events import ObjectReference
from draco.resources.kinds import CLAIMS
from draco.resources.meta import ObjectKey
from draco.resources.names import DeviceKey

log = structlog.get_logger(__name__)

EVENT_REASON = "ClaimMovable"
EVENT_ACTION = "Repairing"
_EVERYTHING = "idle-claims"
"""The one key: what is advised to one pod depends on all of them."""
_PACE_S = 2.0
_REST = 10.0
"""How much longer than a look takes nothing is looked at."""
_SEARCHES = 100
"""Searches in one go, a few milliseconds each; a pod that needs more has to do with these."""
_KEEP_S = 30.0
_ADOPT_WITHIN_S = 30.0


class RepairReconciler:
    """Advice for all waiting pods at once."""

    def __init__(
        self, view: ClusterView, decisions: MigDecisions, notes: Notes, *, clock: Clock, random: Random
    ) -> None:
        self._view = view
        self._decisions = decisions
        self._notes = notes
        self._clock = clock
        self._random = random
        self._adopted = False
        self._due_s = float("-inf")
        self._next: ObjectKey | None = None
        self._advised: dict[ObjectKey, Release] = {}  # by pod
        self._noted: dict[ObjectKey, ObjectReference] = {}
        self._by_policy: Mapping[str, str] = {}
        self._told: list[Callable[[], None]] = []

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Have `wake` called whenever a change may concern what is advised."""
        self._view.followed.subscribe(lambda: wake(_EVERYTHING))
        self._view.pods.subscribe(lambda change: _wake_for_pod(change.before, change.after, lambda: wake(_EVERYTHING)))
        self._view.mig_policies.subscribe(lambda _: wake(_EVERYTHING))

    def all_keys(self) -> set[str]:
        """The one key there is."""
        return {_EVERYTHING}

    def advice(self, policy: str) -> str:
        """What the policy's status passes on; "" when there is nothing."""
        return self._by_policy.get(policy, "")

    def when_told(self, call: Callable[[], None]) -> None:
        """Have `call` called when some policy's sentence has changed."""
        self._told.append(call)

    async def reconcile(self, _: str) -> float | None:
        """Say of every claim concerned what is so, and take back what no longer is."""
        await self._adopt()
        if not self._view.fleet.idle and not self._noted:
            return None
        wait_s = self._due_s - self._clock.monotonic()
        if wait_s > 0:
            return wait_s
        started_s = self._clock.monotonic()
        policies = await self._movable()
        is_all_seen = self._look(policies)
        took_s = self._clock.monotonic() - started_s
        self._due_s = started_s + max(_PACE_S, _REST * took_s)
        self._pass_on(policies)
        again_s = await self._say()
        if not is_all_seen:
            return self._due_s - started_s
        return again_s if self._advised else None

    def _look(self, policies: Mapping[ObjectKey, tuple[str, int]]) -> bool:
        """Look at as many pods as the searches of one go suffice for, each in its turn. Returns whether it was every one."""
        pods = {pod.metadata.key: pod for pod in self._view.pods.store.values() if policies and _is_refused(pod)}
        keys = sorted(pods)
        turn = bisect_left(keys, self._next) if self._next else 0
        searches = Searches(self._view.fleet, _SEARCHES)
        for number, key in enumerate([*keys[turn:], *keys[:turn]]):
            claims = [claim for name in pods[key].claims if (claim := self._view.claims.store.get(name))]
            found = plan_release(searches, pods[key], claims, {claim: most for claim, (_, most) in policies.items()})
            if searches.left < 0 and found is None and number:
                self._next = key  # it was not looked at to the end: it comes first the next time
                break
            self._advised.pop(key, None)
            if found is not None:
                self._advised[key] = found
        else:
            self._next = None
        self._advised = {
            key: release
            for key, release in sorted(self._advised.items())
            if key in pods and all(claim in policies for claim in release.claims)
        }
        return self._next is None

    async def _movable(self) -> dict[ObjectKey, tuple[str, int]]:
        """Idle claims, all of whose devices are partitions of GPUs that may be repaired: by which policy, and its limit."""
        owners = {
            gpu.uuid: gpu.policy
            for decision in (await self._decisions.all() if self._view.fleet.idle else ())
            for gpu in decision.gpus
            if gpu.wanted is not None and gpu.wanted.mode is MigMode.DYNAMIC
        }
        limits = {each.name: each.policy.spec.repair.max_moves for each in self._decisions.rules}
        movable: dict[ObjectKey, tuple[str, int]] = {}
        for claim in self._view.fleet.idle:
            found = {owners.get(self._parent(device), "") for device in self._view.fleet.state.held_by(claim)}
            policy = next(iter(found)) if len(found) == 1 else ""
            if limits.get(policy, 0) > 0:
                movable[claim] = (policy, limits[policy])
        return movable

    def _parent(self, device: DeviceKey) -> str:
        """The UUID of the GPU that a device is a partition of; "" if it is none."""
        for row in self._view.fleet.inventory.rows(device):
            published = self._view.fleet.inventory.columns.devices[row]
            if published is not None:
                attributes = published.attributes
                parent = attributes.get("parentUUID") or attributes.get(f"{device.driver}/parentUUID")
                return parent.string or "" if parent else ""
        return ""

    def _pass_on(self, policies: Mapping[ObjectKey, tuple[str, int]]) -> None:
        said: dict[str, str] = {}
        for release in self._advised.values():
            for key in release.claims:
                said.setdefault(policies[key][0], _for_policy(release))
        if said != self._by_policy:
            self._by_policy = said
            for call in self._told:
                call()

    async def _say(self) -> float:
        texts: dict[ObjectKey, str] = {}
        for release in self._advised.values():
            for key in release.waiting:
                texts.setdefault(key, _for_waiting(release))
            for key in release.claims:
                texts.setdefault(key, _for_idle(release, key))
        for key in [key for key in self._noted if key not in texts]:
            await self._notes.withdraw(self._noted[key])
            del self._noted[key]
        again_s = _KEEP_S
        for key, text in texts.items():
            claim = self._view.claims.store.get(key)
            if claim is None:
                continue
            regarding = _regarding(claim)
            if (noted := self._noted.get(key)) is not None and noted.uid != regarding.uid:
                await self._notes.withdraw(noted)
            if key not in self._noted:
                log.info("repair.advised", claim=str(key), advice=text)
            self._noted[key] = regarding
            again_s = min(again_s, await self._notes.say(regarding, text))
        return again_s

    async def _adopt(self) -> None:
        """Take over what another leader left, so that it is taken back when it is no longer so."""
        if self._adopted:
            return
        try:
            async with asyncio.timeout(_ADOPT_WITHIN_S):
                left = await retry(self._notes.adopt, clock=self._clock, random=self._random)
        except (ApiError, TimeoutError) as error:
            log.warning("events.not_adopted", error=str(error) or "no answer in time")
            left = []
        self._noted |= {ObjectKey(each.namespace, each.name): each for each in left}
        self._adopted = True


def _for_waiting(release: Release) -> str:
    held = "; ".join(f"claim {key} holds {', '.join(release.devices[key])} for no pod" for key in release.claims)
    one = len(release.claims) == 1
    return (
        f"Would be allocated on node {release.node} without {'an idle claim' if one else 'two idle claims'}: {held}. "
        f"If {'it is' if one else 'they are'} deleted and made anew, {'it finds' if one else 'they find'} another place."
    )


def _for_idle(release: Release, claim: ObjectKey) -> str:
    others = [each for each in release.claims if each != claim]
    also = f" and claim {others[0]}" if others else ""
    return (
        f"Holds {', '.join(release.devices[claim])}, and no pod uses it. Without it{also}, {_claims(release.waiting)} of pod "
        f"{release.pod} would be allocated. Delete it and make it anew: there is another place for it."
    )


def _for_policy(release: Release) -> str:
    waiting = _claims(release.waiting)
    return f"{waiting[0].upper()}{waiting[1:]} would fit without idle {_claims(release.claims)}."


def _claims(keys: tuple[ObjectKey, ...]) -> str:
    return f"{'claim' if len(keys) == 1 else 'claims'} {' and '.join(map(str, keys))}"


def _regarding(claim: ResourceClaim) -> ObjectReference:
    meta = claim.metadata
    return ObjectReference(
        api_version=CLAIMS.api_version, kind=CLAIMS.kind, name=meta.name, namespace=meta.namespace, uid=meta.uid
    )


def _is_refused(pod: Pod) -> bool:
    """Whether the scheduler has looked at the pod and found no node."""
    if not pod.waits or not pod.claims:
        return False
    scheduled = next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)
    return scheduled is not None and scheduled.status == "False" and scheduled.reason != "SchedulingGated"


def _wake_for_pod(before: Pod | None, after: Pod | None, wake: Callable[[], None]) -> None:
    was, is_now = before is not None and _is_refused(before), after is not None and _is_refused(after)
    if was != is_now or (is_now and before is not None and after is not None and before.spec != after.spec):
        wake()
