"""Hands the pods of a cluster to the kubelet stand-ins of this process.

Owns the one pod informer and the one work queue that all simulated nodes share, and the Events about pods. Decides nothing
about a pod: that is `standin`.
"""

import asyncio
from typing import NamedTuple

import structlog

from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.connect.retry import Backoff
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.kube.queue import WorkQueue, run_workers
from draco.kube.watch.informer import Informer
from draco.kube.watch.store import Change
from draco.resources.api.core import ObjectReference, Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import PODS
from draco_local.simulator.kubelet.pods import PodBlocked
from draco_local.simulator.kubelet.standin import Kubelet

log = structlog.get_logger(__name__)

BLOCKED_BASE_S = 0.25
BLOCKED_CAP_S = 10.0


class PodOnNode(NamedTuple):
    """The work queue's key."""

    node: str
    pod: ObjectKey


class PodFeed:
    """One watch of all bound pods for any number of stand-ins, which may come and go while it runs."""

    def __init__(self, client: Client, *, events: EventRecorder, clock: Clock, workers: int = 64) -> None:
        self._clock = clock
        self._pods = Informer(client, PODS, field_selector="spec.nodeName!=", clock=clock)
        self._pods.store.add_index("node", lambda pod: [pod.spec.node_name])
        self._pods.subscribe(self._changed)
        self._events = events
        self._workers = workers
        self._queue: WorkQueue[PodOnNode] = WorkQueue(clock=clock, cap_s=BLOCKED_CAP_S)
        self._kubelets: dict[str, Kubelet] = {}
        self._backoffs: dict[PodOnNode, Backoff] = {}

    async def run(self) -> None:
        """Watch and work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run(), name="pods of simulated nodes")
            # Before the first list is in, every pod would look deleted.
            await self._pods.synced.wait()
            await run_workers(self._queue, self._sync, workers=self._workers, log=log)

    def add(self, kubelet: Kubelet) -> None:
        """Hand this stand-in the pods of its node from now on."""
        self._kubelets[kubelet.name] = kubelet
        for key in {pod.metadata.key for pod in self._pods.store.by_index("node", kubelet.name)} | kubelet.known_pods():
            self.wake(kubelet.name, key)

    def remove(self, kubelet: Kubelet) -> None:
        """Stop handing it pods. A sync that is running completes."""
        if self._kubelets.get(kubelet.name) is kubelet:
            del self._kubelets[kubelet.name]

    def wake(self, node: str, pod: ObjectKey) -> None:
        """Look at one pod of one node now."""
        self._queue.add(PodOnNode(node, pod))

    def complain(self, pod: Pod, reason: str, sentence: str) -> None:
        """Record a warning Event about a pod."""
        regarding = ObjectReference(
            api_version=PODS.api_version,
            kind=PODS.kind,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            uid=pod.metadata.uid,
        )
        self._events.record(regarding, EventReason(reason, "Preparing", "Warning"), sentence)

    def _changed(self, change: Change[Pod]) -> None:
        for pod in (change.before, change.after):
            if pod is not None and pod.spec.node_name in self._kubelets:
                self.wake(pod.spec.node_name, change.key)

    async def _sync(self, key: PodOnNode) -> float | None:
        kubelet = self._kubelets.get(key.node)
        if kubelet is None:
            return None
        pod = self._pods.store.get(key.pod)
        try:
            again_s = await kubelet.sync(key.pod, pod if pod and pod.spec.node_name == key.node else None)
        except PodBlocked:  # already reported, and no error here
            backoff = self._backoffs.setdefault(key, Backoff(self._clock, base_s=BLOCKED_BASE_S, cap_s=BLOCKED_CAP_S))
            return backoff.next()
        self._backoffs.pop(key, None)
        return again_s
