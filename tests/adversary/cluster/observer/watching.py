"""Lists and watches: keeps a world up to date with the API server, and reports changes.

Owns one task per kind. Judges nothing.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.adversary.cluster.observer.api import Api, Gone
from tests.adversary.cluster.observer.world import Object, World, revision, stamp

RESOURCE = "/apis/resource.k8s.io"
RULE_VERSIONS = ("v1", "v1beta2", "v1alpha3")
RETRY_S = 0.3


class Kind(NamedTuple):
    """A kind's API paths, of which the first served one is used, and its attribute in World."""

    paths: tuple[str, ...]
    kept_in: str


KINDS: Mapping[str, Kind] = {
    "claim": Kind((f"{RESOURCE}/v1/resourceclaims",), "claims"),
    "slice": Kind((f"{RESOURCE}/v1/resourceslices",), "slices"),
    "rule": Kind(tuple(f"{RESOURCE}/{version}/devicetaintrules" for version in RULE_VERSIONS), "rules"),
    "request": Kind(("/apis/draco.dev/v1alpha1/devicemaintenances",), "requests"),
    "pod": Kind(("/api/v1/pods",), "pods"),
    "event": Kind(("/apis/events.k8s.io/v1/events?fieldSelector=reportingController%3Ddraco-operator",), "events"),
    "lease": Kind(("/apis/coordination.k8s.io/v1/namespaces/draco-system/leases",), "leases"),
    "node": Kind(("/api/v1/nodes",), "nodes"),
    "budget": Kind(("/apis/draco.dev/v1alpha1/maintenancebudgets",), "budgets"),
    "gpunode": Kind(("/apis/draco.dev/v1alpha1/gpunodes",), "gpu_nodes"),
    "policy": Kind(("/apis/draco.dev/v1alpha1/migpolicies",), "policies"),
    "sharing policy": Kind(("/apis/draco.dev/v1alpha1/sharingpolicies",), "sharing_policies"),
    "reservation": Kind(("/apis/draco.dev/v1alpha1/devicereservations",), "reservations"),
    "limit": Kind(("/apis/draco.dev/v1alpha1/devicelimits",), "limits"),
    "pod group": Kind(("/apis/scheduling.k8s.io/v1alpha2/podgroups",), "pod_groups"),
    "job": Kind(("/apis/batch/v1/jobs",), "jobs"),
    "pod budget": Kind(("/apis/policy/v1/poddisruptionbudgets",), "pod_budgets"),
}

Changed = Callable[[str, Object | None, Object | None], None]
"""Called with the kind, the object before and the object after; None if there is none."""


async def fresh(api: Api, kinds: tuple[str, ...], known: World) -> World | None:
    """List these kinds into a new world with `known`'s history of names; None if there is no answer."""
    found = World(names=known.names, held_since=known.held_since)
    for kind in kinds:
        for path in KINDS[kind].paths:
            answer = await api.call("GET", path)
            if answer.status != 404:
                break
        if answer.status == 404:
            continue
        if not answer.ok:
            return None
        kept: dict[str, Object] = getattr(found, KINDS[kind].kept_in)
        kept.update({one["metadata"]["uid"]: one for one in answer.body["items"]})
    return found


def learn(world: World, kind: str, one: Object) -> Object | None:
    """Put an object into a world. Returns the previous one."""
    kept: dict[str, Object] = getattr(world, KINDS[kind].kept_in)
    uid = one["metadata"]["uid"]
    before = kept.get(uid)
    kept[uid] = one
    if kind == "slice":
        pool = (one["spec"]["driver"], one["spec"]["pool"]["name"])
        if one["spec"]["pool"].get("generation", 0) >= world.generation(pool):
            world.names.learn(one)
    if kind == "claim" and stamp(one) and (before is None or stamp(before) != stamp(one)):
        world.held_since.setdefault((uid, stamp(one)), revision(one))
    return before


class Watching:
    """Lists and watches one kind until cancelled. Updates the world and calls `changed` under `lock`."""

    def __init__(self, api: Api, kind: str, world: World, changed: Changed, lock: threading.RLock) -> None:
        self.kind = kind
        self.listed = asyncio.Event()
        self.served = True
        self.lists = 0
        self._api = api
        self._world = world
        self._changed = changed
        self._lock = lock

    async def run(self) -> None:
        """List and watch, again and again."""
        while True:
            started = await self._list()
            if started is not None:
                path, since = started
                try:
                    async for type_, one in self._api.watch(path, since):
                        if type_ != "BOOKMARK":
                            with self._lock:
                                self._take(type_, one)
                except Gone:
                    pass
            await asyncio.sleep(RETRY_S)

    async def _list(self) -> tuple[str, str] | None:
        for path in KINDS[self.kind].paths:
            answer = await self._api.call("GET", path)
            if answer.status == 404:
                continue
            if not answer.ok:
                return None
            self.served = True
            self.lists += 1
            with self._lock:
                self._replace(answer.body["items"])
            self.listed.set()
            return path, answer.body["metadata"]["resourceVersion"]
        self.served = False  # keep the known objects: they still exist but cannot be read
        self.listed.set()
        return None

    def _replace(self, items: list[Object]) -> None:
        kept: dict[str, Object] = getattr(self._world, KINDS[self.kind].kept_in)
        there = {one["metadata"]["uid"] for one in items}
        for one in items:
            self._take("ADDED", one)
        for uid in [uid for uid in kept if uid not in there]:
            self._take("DELETED", kept[uid])

    def _take(self, type_: str, one: Object) -> None:
        kept: dict[str, Object] = getattr(self._world, KINDS[self.kind].kept_in)
        if type_ == "DELETED":
            kept.pop(one["metadata"]["uid"], None)
            self._changed(self.kind, one, None)
            return
        before = learn(self._world, self.kind, one)
        if before is None or revision(before) != revision(one):
            self._changed(self.kind, before, one)
