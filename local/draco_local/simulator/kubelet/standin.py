"""A stand-in for kubelet on one simulated node: no containers, everything else for real.

Owns the life of the pods bound to its node: claims resolved and checked, drivers called over their real Unix sockets, pod
status, teardown. Never allocates and never talks to NVML. Pods come from `podfeed`.
Source: kubelet's DRA manager and plugin contract (KEP-4381).
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import structlog

from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Conflict, NotFound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS
from draco.resources.names import ClaimUid
from draco_local.simulator.kubelet import pods
from draco_local.simulator.kubelet.ledger import ClaimRecord, Ledger, PodRecord
from draco_local.simulator.kubelet.node_object import FIELD_MANAGER, NodeObject
from draco_local.simulator.kubelet.plugins import PluginError, Plugins
from draco_local.simulator.kubelet.pods import PodBlocked

log = structlog.get_logger(__name__)

REGISTER_RETRY_S = 2.0


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one stand-in behaves.

    `root` holds plugins_registry, plugins and the stand-in's own file; socket paths below it must stay under 108 bytes.
    `noop_drivers` need no plugin here: their devices count as prepared at once. `wipe_after_s` is how long after a driver's last
    sign of life its slices are deleted. `termination_s` is how long a pod's containers take to stop.
    """

    node_name: str
    root: Path
    noop_drivers: frozenset[str] = frozenset()
    wipe_after_s: float = 30.0
    termination_s: float = 0.0


class Kubelet:
    """One simulated node's kubelet.

    `run` keeps the node alive; `sync` brings one pod to its wanted state and may be called for different pods at once.
    `wake` asks the caller of `sync` to call it again soon for a pod. `complain(pod, reason, sentence)` records an Event.
    """

    def __init__(
        self,
        settings: KubeletSettings,
        client: Client,
        *,
        node: NodeObject,
        clock: Clock,
        wake: Callable[[ObjectKey], None],
        complain: Callable[[Pod, str, str], None],
    ) -> None:
        self.name = settings.node_name
        self.ready = asyncio.Event()
        self._settings = settings
        self._client = client
        self._node = node
        self._clock = clock
        self._wake = wake
        self._complain = complain
        settings.root.mkdir(parents=True, exist_ok=True)
        self._ledger = Ledger(settings.root / "dra_manager_state")
        self._plugins = Plugins(settings.root, clock=clock, registered=self._driver_registered)
        self._prepared: set[str] = set()  # uids of pods whose drivers have answered since this process started
        self._blocked: dict[ObjectKey, str] = {}  # the last reason that was reported of a blocked pod
        self._locks: WeakValueDictionary[ClaimUid, asyncio.Lock] = (
            WeakValueDictionary()
        )  # a lock lives while it is held

    async def run(self) -> None:
        """Register the node, then keep it Ready and its plugins registered until cancelled. Sets `ready` once registered."""
        await self._register()
        self.ready.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node.run(), name=f"heartbeat of {self.name}")
            tasks.create_task(self._plugins.run(), name=f"plugins of {self.name}")
            tasks.create_task(self._remove_slices_of_the_dead(), name=f"slices of {self.name}")

    def known_pods(self) -> set[ObjectKey]:
        """The pods that this node remembers, whether or not they still exist."""
        return self._ledger.names()

    async def sync(self, key: ObjectKey, pod: Pod | None) -> float | None:
        """Bring one pod forward; `pod` is None when the API server has none of this name on this node.

        Returns the seconds after which to look again, if time alone will change something. Raises PodBlocked or ApiError when
        it has to be tried again with backoff.
        """
        try:
            again_s = await self._sync(key, pod)
        except PodBlocked as blocked:
            await self._say(key, pod, blocked)
            raise
        self._blocked.pop(key, None)
        return again_s

    async def _sync(self, key: ObjectKey, pod: Pod | None) -> float | None:
        uid = pod.metadata.uid if pod else ""
        for record in self._ledger.named(key):
            if record.uid != uid:
                await self._release(record)
        if pod is None:
            return None
        known = self._ledger.pod(uid)
        if pod.metadata.deletion_timestamp is not None:
            return await self._end(pod, known)
        if pod.status.phase in pods.FINISHED:
            if known:
                await self._release(known)
            return None
        if known is None or known.started_at is None or uid not in self._prepared:
            known = await self._start(pod, known)
        return await self._run_on(pod, known)

    async def _register(self) -> None:
        while True:
            try:
                await self._node.register()
                await self._node.remove_slices()
            except ApiError as error:
                log.warning("node.not_registered", node=self.name, error=str(error))
                await self._clock.sleep(REGISTER_RETRY_S)
            else:
                return

    async def _start(self, pod: Pod, known: PodRecord | None) -> PodRecord:
        """Prepare the pod's claims and say that it runs. A pod that ran before this process started is only prepared again.

        When it started is written down before it is reported: whoever has seen the report sees the same moment after a restart.
        """
        claims = [await self._usable(pod, use) for use in pods.claim_uses(pod)]
        record = PodRecord(pod.metadata.uid, *pod.metadata.key, claims, known.started_at if known else None)
        async with self._holding(claims):
            self._ledger.put(record)  # first: what may have been prepared must be known to teardown
            await self._prepare(claims)
        started_at = record.started_at or self._clock.now()
        record = msgspec.structs.replace(record, started_at=started_at)
        self._ledger.put(record)
        if pod.status.phase != "Running":
            await self._report(pod, pods.running_status(pod, node_ip=pods.node_ip(self.name), at=started_at))
            log.info("pod.running", node=self.name, pod=str(pod.metadata.key), claims=len(claims))
        self._prepared.add(record.uid)
        return record

    async def _run_on(self, pod: Pod, record: PodRecord) -> float | None:
        """Let a running pod run, or finish it when its time is up."""
        wanted = pods.run_seconds(pod)
        if wanted is None or record.started_at is None:
            return None
        now = self._clock.now()
        left = (record.started_at + timedelta(seconds=wanted) - now).total_seconds()
        if left > 0:
            return left
        await self._report(pod, pods.finished_status(pod, started_at=record.started_at, at=now))
        log.info("pod.finished", node=self.name, pod=str(pod.metadata.key))
        return None

    async def _end(self, pod: Pod, record: PodRecord | None) -> float | None:
        """Stop a pod that is being deleted: grace, unprepare, then remove it from the API server."""
        if record and record.started_at and pod.status.phase not in pods.FINISHED:
            deleted_at = pod.metadata.deletion_timestamp or self._clock.now()
            # deletionTimestamp is when the grace period ends, not when it began.
            grace = timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
            stopped_at = (
                deleted_at - grace + timedelta(seconds=min(self._settings.termination_s, grace.total_seconds()))
            )
            left = (stopped_at - self._clock.now()).total_seconds()
            if left > 0:
                return left
        if record:
            await self._release(record)
        with suppress(NotFound, Conflict):  # gone already, or a new pod of that name
            await self._client.delete(PODS, pod.metadata.key, uid=pod.metadata.uid, grace_period_s=0)
        return None

    async def _usable(self, pod: Pod, use: pods.ClaimUse) -> ClaimRecord:
        """The claim behind one entry of the pod, read from the API server: a cache may lag behind the binding."""
        try:
            claim: ResourceClaim = await self._client.get(CLAIMS, use.key)
        except NotFound:
            raise PodBlocked("ClaimNotFound", f"claim {use.key} does not exist") from None
        pods.check_usable(claim, pod, generated=use.generated)
        return ClaimRecord(ClaimUid(claim.metadata.uid), *use.key, pods.drivers_of(claim))

    async def _prepare(self, claims: Iterable[ClaimRecord]) -> None:
        for driver, theirs in self._by_driver(claims):
            try:
                failures = await self._plugins.prepare(driver, theirs)
            except PluginError as error:
                raise PodBlocked("FailedPrepareDynamicResources", str(error)) from error
            _raise_first("prepare", driver, theirs, failures)

    async def _release(self, record: PodRecord) -> None:
        """Unprepare what no other pod here uses, then forget the pod."""
        async with self._holding(record.claims):
            unused = [claim for claim in record.claims if not self._ledger.used_by_others(claim.uid, record.uid)]
            for driver, theirs in self._by_driver(unused):
                try:
                    failures = await self._plugins.unprepare(driver, theirs)
                except PluginError as error:
                    raise PodBlocked("FailedUnprepareDynamicResources", str(error)) from error
                _raise_first("unprepare", driver, theirs, failures)
            self._ledger.drop(record.uid)
            self._prepared.discard(record.uid)
            log.info("pod.released", node=self.name, pod=str(record.key), claims=len(unused))

    def _by_driver(self, claims: Iterable[ClaimRecord]) -> list[tuple[str, list[ClaimRecord]]]:
        by_driver: dict[str, list[ClaimRecord]] = defaultdict(list)
        for claim in claims:
            for driver in claim.drivers:
                if driver not in self._settings.noop_drivers:
                    by_driver[driver].append(claim)
        return sorted(by_driver.items())

    @asynccontextmanager
    async def _holding(self, claims: Iterable[ClaimRecord]) -> AsyncIterator[None]:
        """Two pods that share a claim must not prepare and unprepare it at once. Sorted, so that no two wait for each other."""
        async with AsyncExitStack() as stack:
            for uid in sorted({claim.uid for claim in claims}):
                await stack.enter_async_context(self._locks.setdefault(uid, asyncio.Lock()))
            yield

    async def _report(self, pod: Pod, status: dict[str, Any]) -> None:
        manifest = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        with suppress(NotFound):  # deleted meanwhile: the watch will say so
            await self._client.apply(PODS, pod.metadata.key, manifest, manager=FIELD_MANAGER, subresource="status")

    async def _say(self, key: ObjectKey, pod: Pod | None, blocked: PodBlocked) -> None:
        """Report why a pod is blocked, whenever the reason changes."""
        if self._blocked.get(key) == str(blocked):
            return
        self._blocked[key] = str(blocked)
        log.warning("pod.blocked", node=self.name, pod=str(key), reason=str(blocked))
        if pod is None:
            return
        self._complain(pod, blocked.reason, str(blocked))
        known = self._ledger.pod(pod.metadata.uid)
        if pod.metadata.deletion_timestamp is None and (known is None or known.started_at is None):
            status = pods.blocked_status(pod, blocked, node_ip=pods.node_ip(self.name), at=self._clock.now())
            await self._report(pod, status)

    def _driver_registered(self, driver: str) -> None:
        """A driver is back: wake the pods that wait for it, whatever their backoff."""
        for key, sentence in self._blocked.items():
            if driver in sentence:
                self._wake(key)

    async def _remove_slices_of_the_dead(self) -> None:
        while True:
            await self._clock.sleep(min(1.0, self._settings.wipe_after_s))
            for driver in self._plugins.gone_for(self._settings.wipe_after_s):
                try:
                    await self._node.remove_slices(driver)
                except ApiError as error:
                    log.warning("node.slices_not_removed", node=self.name, driver=driver, error=str(error))


def _raise_first(verb: str, driver: str, claims: Iterable[ClaimRecord], failures: dict[str, str]) -> None:
    for claim in claims:
        if claim.uid in failures:
            name = ObjectKey(claim.namespace, claim.name)
            raise PodBlocked(
                f"Failed{verb.capitalize()}DynamicResources",
                f"DRA driver {driver} could not {verb} claim {name}: {failures[claim.uid]}",
            )
