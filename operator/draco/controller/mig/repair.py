"""Finds idle claims that block a waiting pod, on GPUs whose MigPolicy lets claims be moved.

Owns one Event on each waiting and each idle claim, kept up to date, and the sentence for the policy's status. Where the policy
permits it, has `release` take the idle claims' devices back; otherwise nothing is touched, because an idle claim may be
somebody's reservation and its owner must delete it. Idle instances without a claim give way automatically.
"""

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import structlog

from draco.controller.loop_watch import CooperativeWork
from draco.controller.mig.release import ClaimReleases, Movable, MovableClaims
from draco.controller.view import ClusterView
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import FindRelease, ReleaseAnswer
from draco.controller.workers.pool import Workers
from draco.kube.clock import Clock
from draco.kube.connect.retry import attempted
from draco.kube.errors import ApiError
from draco.kube.events.notes import Notes, NotesByKey
from draco.kube.events.shares import EventReason
from draco.kube.listeners import Listeners
from draco.mig_policy import release_policy
from draco.mig_policy.release_policy import ReleaseObstacle
from draco.mig_policy.releases import ClaimRelease
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.draco import IdleClaims
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS

log = structlog.get_logger(__name__)

EVENT_REASON = EventReason("ClaimMovable", "Repairing", "Warning")
_EVERYTHING = "idle-claims"
"""The one key: advice for one pod depends on all."""
_PACE_S = 2.0
_REST = 10.0
"""After a look, rest this many times its duration."""
_GO_S = 1.0
"""Work per run, in the operator and in workers."""
_ANSWER_WITHIN_S = 5.0
"""Timeout for an answer, so that a namespace over its budget does not block the others."""
_ASK_AGAIN_S = 10.0
"""When to look again at a pod without an answer, since no event may do so."""
_AT_A_STRETCH = 256
"""Pods or claims that are processed before yielding."""
_KEEP_S = 30.0


class RepairReconciler:
    """Advises all waiting pods together, and releases for one after the other."""

    def __init__(
        self, view: ClusterView, movable: MovableClaims, notes: Notes, releases: ClaimReleases, workers: Workers
    ) -> None:
        self._view = view
        self._movable = movable
        self._notes = NotesByKey(notes, lambda each: ObjectKey(each.namespace, each.name))
        self._releases = releases
        self._workers = workers
        self._adopted = False
        self._due_s = float("-inf")
        self._next: ObjectKey | None = None
        self._advised: dict[ObjectKey, ClaimRelease] = {}  # by pod
        self._by_policy: Mapping[str, str] = {}
        self.on_advice = Listeners[[]]()
        """Called when a policy's sentence changes."""

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` whenever a change may affect the advice."""

        def wake_for_pod(before: Pod | None, after: Pod | None) -> None:
            pod = after or before
            if _concerns(before, after) or (pod is not None and not self._concerned.isdisjoint(pod.claims)):
                wake(_EVERYTHING)

        def wake_if_advised() -> None:
            if self._advised:
                wake(_EVERYTHING)

        self._view.followed.listeners.add(lambda: wake(_EVERYTHING))
        self._view.pods.subscribe(lambda change: wake_for_pod(change.before, change.after))
        self._view.mig_policies.subscribe(lambda _: wake(_EVERYTHING))
        self._view.gpu_nodes.subscribe(lambda _: wake_if_advised())

    @property
    def _concerned(self) -> set[ObjectKey]:
        return {key for release in self._advised.values() for key in release.claims}

    def all_keys(self) -> set[str]:
        """The one key."""
        return {_EVERYTHING}

    def advice(self, policy: str) -> str:
        """The sentence for the policy's status; "" without advice."""
        return self._by_policy.get(policy, "")

    async def reconcile(self, _: str) -> float | None:
        """Update the Events of all affected claims, and release what is permitted."""
        await self._adopt()
        if not (self._view.idle_claims or self._notes.said or self._by_policy):
            return None
        wait_s = self._due_s - self._view.clock.monotonic()
        if wait_s > 0:
            return wait_s
        if self._releases.in_flight:
            return _PACE_S  # the view shows the state before our own write
        run = _RepairRun(self._workers, self._view.clock)
        is_all_seen = await self._look(run)
        self._due_s = self._view.clock.monotonic() + max(_PACE_S, _REST * run.worked_s)
        problem: ApiError | None = None
        release_again_s = _KEEP_S
        try:
            release_again_s = await self._release()
        except ApiError as error:
            problem = error  # the Event is still written
        self._pass_on()
        again_s = min(await self._say(), release_again_s)
        if problem is not None:
            raise problem
        if not is_all_seen:
            return max(0.0, self._due_s - self._view.clock.monotonic())
        if run.unanswered:
            return min(again_s, _ASK_AGAIN_S)
        return again_s if self._advised or self._by_policy else None

    async def _look(self, run: "_RepairRun") -> bool:
        """Look at pods in turn, as many as fit into one run. Return whether all were looked at."""
        movable: dict[ObjectKey, Movable] = {}
        async for some in run.parts(self._view.idle_claims):
            movable |= self._movable.among(some)
        keys: list[ObjectKey] = []
        async for more in run.parts(list(self._view.pods.store) if movable else []):
            keys += [key for key in more if self._refused(key)]
        keys.sort()
        turn = bisect_left(keys, self._next) if self._next else 0
        every = {key: each.most for key, each in movable.items()}
        free = {key: every[key] for key, each in movable.items() if self._obstacle(key, each) is None}
        for number, key in enumerate([*keys[turn:], *keys[:turn]]):
            pod = self._refused(key)
            if pod is None:
                continue  # no longer waits
            claims = self._claims_of(pod)
            unanswered = run.unanswered
            # Releasable claims first: a pod must not wait for a person needlessly.
            found = await run.find(pod, claims, free) if free else None
            if found is None and len(free) < len(every):
                found = await run.find(pod, claims, every)
            if run.is_over and found is None and number:
                self._next = key  # it was not finished: it comes first next time
                break
            if found is None and run.unanswered > unanswered:
                continue  # the former advice still stands
            self._advised.pop(key, None)
            if found is not None:
                self._advised[key] = found
        else:
            self._next = None
        self._advised = {
            key: release
            for key, release in sorted(self._advised.items())
            if self._refused(key) and all(claim in movable for claim in release.claims)
        }
        return self._next is None

    def _refused(self, key: ObjectKey) -> Pod | None:
        """The pod, if the scheduler has found no node for it."""
        pod = self._view.pods.store.get(key)
        return pod if pod is not None and _is_refused(pod) else None

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        return [claim for name in pod.claims if (claim := self._view.claims.store.get(name))]

    def _obstacle(self, key: ObjectKey, movable: Movable) -> ReleaseObstacle | None:
        claim = self._view.claims.store.get(key)
        return self._releases.obstacle(claim, movable) if claim else ReleaseObstacle(text="it is gone")

    async def _release(self) -> float:
        """Release what one pod needs, if permitted now. Return seconds until more may be done."""
        run = _RepairRun(self._workers, self._view.clock)
        pause_s = self._releases.pause_s()
        for pod in sorted(self._advised) if pause_s <= 0 else ():
            release, policies = await self._still_needed(pod, run)
            if release is None:
                continue
            if await self._releases.carry_out(release, policies, partial(self._may_go, pod)):
                del self._advised[pod]  # the next look reports the new state
            pause_s = self._releases.pause_s()
            break
        movable = self._movable.among(self._concerned)
        found = (self._obstacle(key, each) for key, each in movable.items())
        waits = [each.again_s for each in found if each is not None and each.again_s is not None]
        if pause_s > 0:
            waits.append(max(pause_s, _PACE_S))
        return min([_KEEP_S, *waits])

    async def _still_needed(
        self, pod: ObjectKey, run: "_RepairRun"
    ) -> tuple[ClaimRelease | None, Mapping[ObjectKey, str]]:
        """What must go for the pod, searched again with the current state, with the policies; None if it may not."""
        waiting, advised = self._refused(pod), self._advised[pod]
        movable = self._movable.among(advised.claims)
        may_go = [key for key, each in movable.items() if self._obstacle(key, each) is None]
        if waiting is None or len(may_go) < len(advised.claims):
            return None, {}
        most = {key: each.most for key, each in movable.items()}
        release = await run.find(waiting, self._claims_of(waiting), most)
        return release, {key: each.policy for key, each in movable.items()}

    def _may_go(self, pod: ObjectKey, claim: ObjectKey) -> bool:
        """Whether the claim is unchanged since the release was planned, and the pod still waits."""
        movable = self._movable.among([claim]).get(claim)
        return movable is not None and self._refused(pod) is not None and self._obstacle(claim, movable) is None

    def _pass_on(self) -> None:
        movable = self._movable.among(self._concerned)
        advised: dict[str, str] = {}
        refused: dict[str, str] = {}
        for release in self._advised.values():
            for key in release.claims:
                if key in movable:
                    advised.setdefault(movable[key].policy, release_policy.for_policy(release))
                    if refusal := self._releases.refusal(key):
                        refused.setdefault(movable[key].policy, refusal)
        released = self._releases.latest()
        said = {
            policy: " ".join(filter(None, (each.get(policy) for each in (released, advised, refused))))
            for policy in {*released, *advised}
        }
        if said != self._by_policy:
            self._by_policy = said
            self.on_advice.tell()

    async def _say(self) -> float:
        texts: dict[ObjectKey, str] = {}
        for release in self._advised.values():
            prospect = self._prospect(release)
            for key in release.waiting:
                texts.setdefault(key, release_policy.for_waiting(release, prospect))
            for key in release.claims:
                texts.setdefault(key, release_policy.for_idle(release, key, prospect))
        for key in [key for key in self._notes.said if key not in texts]:
            await self._notes.withdraw(key)
        again_s = _KEEP_S
        for key, text in texts.items():
            claim = self._view.claims.store.get(key)
            if claim is None:
                continue
            if key not in self._notes.said:
                log.info("repair.advised", claim=str(key), advice=text)
            again_s = min(again_s, await self._notes.say(CLAIMS.reference(claim.metadata), text))
        return again_s

    def _prospect(self, release: ClaimRelease) -> str:
        """What happens to the idle claims if nobody acts."""
        movable = self._movable.among(release.claims)
        keeping = [each.policy for each in movable.values() if each.permit is not IdleClaims.RELEASE]
        if keeping:
            return release_policy.kept(release, keeping)
        if refusal := next(filter(None, map(self._releases.refusal, release.claims)), ""):
            return refusal
        for key, each in movable.items():
            if (found := self._obstacle(key, each)) is not None:
                return release_policy.held_back(release, key, found.text)
        return release_policy.due(release)

    async def _adopt(self) -> None:
        """Adopt a former leader's Events, so that outdated ones are withdrawn."""
        if self._adopted:
            return
        await attempted("events.not_adopted", self._notes.adopt, clock=self._view.clock)
        await attempted("events.not_adopted", self._releases.adopt, clock=self._view.clock)
        self._adopted = True


class _RepairRun:
    """A run of searches by the workers; it ends when its time is used up."""

    def __init__(self, workers: Workers, clock: Clock) -> None:
        self._workers = workers
        self.unanswered = 0
        self._cooperative = CooperativeWork(clock)
        self._searched_s = 0.0

    @property
    def worked_s(self) -> float:
        """Work so far, capped at a whole run: anything beyond was a delay by the machine."""
        return min(_GO_S, self._cooperative.work_s + self._searched_s)

    @property
    def is_over(self) -> bool:
        """Whether the run is over, so that something may be missing."""
        return self.worked_s >= _GO_S

    async def find(
        self, pod: Pod, claims: list[ResourceClaim], movable: Mapping[ObjectKey, int]
    ) -> ClaimRelease | None:
        """The idle claims that block the pod; also None if the run is over, or the search takes too long."""
        if self.is_over or not movable or all(claim.status.allocation is not None for claim in claims):
            return None
        question = FindRelease(pod, claims, list(movable.items()))
        answered = await self._workers.ask_within(
            question, pod.metadata.namespace, QueuePriority.SEARCH, _ANSWER_WITHIN_S
        )
        if answered is None:
            self.unanswered += 1
            return None
        self._searched_s += answered.cpu_s
        return answered.answer.release if isinstance(answered.answer, ReleaseAnswer) else None

    async def parts(self, keys: list[ObjectKey]) -> AsyncIterator[list[ObjectKey]]:
        """All keys, in chunks."""
        for start in range(0, len(keys), _AT_A_STRETCH):
            yield keys[start : start + _AT_A_STRETCH]
            await self._cooperative.pause()


def _is_refused(pod: Pod) -> bool:
    """Whether the scheduler has tried the pod and found no node."""
    return pod.waits and bool(pod.claims) and pod.is_refused


def _concerns(before: Pod | None, after: Pod | None) -> bool:
    was, is_now = before is not None and _is_refused(before), after is not None and _is_refused(after)
    return was != is_now or (is_now and before is not None and after is not None and before.spec != after.spec)
