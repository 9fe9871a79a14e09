"""Probes, at rest, GPUs that changed allocators: a pod with a claim for exactly such a GPU must run.

Owns these claims and pods, their deletion, and the verdict. Probes one GPU handed over to Draco and one handed back.
"""

import asyncio

from tests.adversary.cluster import manifests as write
from tests.adversary.cluster.maintaining import Write
from tests.adversary.cluster.manifests import ADMINS, DRACOS_GPU, DRIVER, GPU
from tests.adversary.cluster.observer.allocators import Traded
from tests.adversary.cluster.observer.observer import Observer
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, name, phase

PODS = f"/api/v1/namespaces/{ADMINS}/pods"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{ADMINS}/resourceclaims"
WITHIN_S = 40.0
"""A hand-over takes some ten seconds, and a pod's start a few more."""
UNTOLD_S = 240.0
"""How long kube-scheduler's watch may be silent after the API server restarted.

A pod whose claim it does not know has no condition PodScheduled.
"""
POLL_S = 0.2


class Probing:
    """Probes one cluster. `write` makes a request and counts refusals."""

    def __init__(self, observer: Observer, write: Write) -> None:
        self._observer = observer
        self._write = write
        self._number = 0

    async def run(self) -> None:
        """Probe one GPU of each kind, both concurrently."""
        chosen = {one.is_dracos: one for one in self._observer.traded()}
        await asyncio.gather(*(self._try(one) for one in chosen.values()))

    async def _try(self, one: Traded) -> None:
        self._number += 1
        title = f"probe-{self._number}"
        kind = DRACOS_GPU if one.is_dracos else GPU
        wanted = write.request("gpu", kind, selectors=[f'device.attributes["{DRIVER}"].uuid == "{one.uuid}"'])
        await self._write("POST", CLAIMS, write.claim(ADMINS, title, [wanted]))
        await self._write("POST", PODS, write.pod(ADMINS, title, [title]))
        waited = untold = 0.0
        while waited < WITHIN_S and untold < UNTOLD_S and not self._runs(title) and one in self._observer.traded():
            await asyncio.sleep(POLL_S)
            if self._was_looked_at(title):
                waited += POLL_S
            else:
                untold += POLL_S
        if self._runs(title):
            self._observer.counts["GPUs used again by " + ("Draco" if one.is_dracos else "the scheduler")] += 1
        elif waited >= WITHIN_S:
            whose = "handed over to Draco" if one.is_dracos else "handed back to the scheduler"
            text = (
                f"{one.device} was {whose} and is free, and a pod that asks for it does not run within {WITHIN_S:g} s"
            )
            self._observer.violated(Suspicion("not used again", f"{title} {one.device}", text))
        elif untold >= UNTOLD_S:
            self._observer.counts["probes that the scheduler never looked at"] += 1
        self._observer.bystanders.asked(f"{ADMINS}/{title}")
        await self._write("DELETE", f"{PODS}/{title}")
        await self._write("DELETE", f"{CLAIMS}/{title}")

    def _runs(self, title: str) -> bool:
        return phase(self._pod(title)) == "Running"

    def _was_looked_at(self, title: str) -> bool:
        conditions = self._pod(title).get("status", {}).get("conditions", [])
        return any(each["type"] == "PodScheduled" for each in conditions)

    def _pod(self, title: str) -> Object:
        """The pod as last seen; empty if it was never seen."""
        pods = list(self._observer.world.pods.values())
        return next((each for each in pods if name(each) == f"{ADMINS}/{title}"), {})
