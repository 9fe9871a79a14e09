"""Warnings and evictions of pods that use nothing: through a whole notice, restarts, refusals and missing rights."""

from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from draco.controller.evictions import NOT_PERMITTED, PodEvictions
from draco.controller.limits.unused_claims import NOT_READABLE, UnusedClaimReconciler
from draco.controller.view import ClusterView
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, DisruptionRefused, Forbidden, NotFound, Unreachable
from draco.kube.events.events import EventRecorder
from draco.limits.unused import LOOK_AGAIN
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod, PodStatus
from draco.resources.api.limits import Namespace, UnusedLimit
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.api.usage import DeviceUsage, GpuUsage, GpuUsageStatus, UnusedDevice
from draco.resources.kinds import DEVICE_LIMITS, GPU_USAGES, TAINT_RULES, Kind
from tests.builders import MOMENT, a_claim, a_gpu_node, a_limit, a_maintenance, a_pod
from tests.doubles.clock import ManualClock
from tests.unit.controller.health.test_fault_notices import Recorded
from tests.unit.controller.watching import forget, tell

LIMIT = a_limit("idle", tenant="a", unused=UnusedLimit(evict_after="4h", notice="15m"))
NOTICE_S = 900.0
KEY = ObjectKey("default", "train")


def runs(name: str, *claims: str, **said: Any) -> Pod:
    status = PodStatus(phase="Running", start_time=MOMENT - timedelta(days=1))
    return a_pod(name, claims=claims, node="node-0", status=status, **said)


class World:
    """A claim whose pod has used nothing for five hours, a limit of four, and an API server that records what is asked."""

    def __init__(self) -> None:
        self.clock = ManualClock(MOMENT)
        self.view = ClusterView(cast("Client", self), TAINT_RULES[1], clock=self.clock)
        self.events = Recorded()
        self.count = Counter("evictions", "x", ["outcome"], registry=CollectorRegistry())
        self.reads: list[str] = []
        self.evicted: list[str] = []
        self.refusal: ApiError | None = None
        self.unreadable: ApiError | None = None
        self.unused: dict[str, str] = {"train": "gpu-0"}
        self.since = MOMENT - timedelta(hours=5)
        self.silent_s = 0.0
        self.limit = LIMIT
        self.claims = {"train": a_claim("train", on=["node-0/gpu-0"], reserved_for=["train-0"])}
        tell(self.view, LIMIT, Namespace(metadata=ObjectMeta(name="default", labels={"tenant": "a"})))
        tell(self.view, a_gpu_node("node-0"), *self.claims.values(), runs("train-0", "train"))
        self.restart()

    def restart(self) -> None:
        evictions = PodEvictions(cast("Client", self), clock=self.clock)
        self.unused_claims = UnusedClaimReconciler(
            cast("Client", self), self.view, evictions, cast("EventRecorder", self.events), count=self.count
        )

    def add(self, claim: ResourceClaim, *pods: Pod, unused: str = "") -> None:
        self.claims[claim.metadata.name] = claim
        if unused:
            self.unused[claim.metadata.name] = unused
        tell(self.view, claim, *pods)

    async def get(self, kind: Kind[Any], key: ObjectKey) -> Any:
        if kind is DEVICE_LIMITS:
            return self.limit
        assert kind is GPU_USAGES
        self.reads.append(key.name)
        if self.unreadable:
            raise self.unreadable
        unused = [
            UnusedDevice(
                uuid=device,
                namespace="default",
                claim=name,
                claim_uid=self.claims[name].metadata.uid,
                since=self.since,
            )
            for name, device in self.unused.items()
        ]
        devices = [DeviceUsage(uuid=f"gpu-{number}", device=f"gpu-{number}") for number in range(4)]
        time = self.clock.now() - timedelta(seconds=self.silent_s)
        return GpuUsage(
            metadata=ObjectMeta(name=key.name), status=GpuUsageStatus(time=time, devices=devices, unused=unused)
        )

    async def create_subresource(self, _: Any, key: ObjectKey, __: str, body: Any, *, dry_run: bool) -> None:
        assert not dry_run
        assert body["metadata"]["annotations"] == {"draco.dev/leader-only": "true"}
        if self.refusal:
            raise self.refusal
        self.evicted.append(key.name)

    async def look(self, key: ObjectKey = KEY, *, after_s: float = 0) -> float | None:
        self.clock.pass_without_a_turn(after_s)
        return await self.unused_claims.reconcile(key)

    @property
    def told(self) -> list[tuple[str, str]]:
        """Who got which Events since the last call."""
        found, self.events.said = [(who, reason) for who, reason, _ in self.events.said], []
        return found


WARNED = [("ResourceClaim train", "UnusedEvictionAhead"), ("Pod train-0", "UnusedEvictionAhead")]


async def test_the_claim_and_its_pods_are_warned_once_and_evicted_when_the_notice_says() -> None:
    world = World()
    assert await world.look() == NOTICE_S
    assert world.events.said[0][2] == (
        "No program has used gpu-0 of node-0 since 2026-03-01 07:00 UTC. The pods are evicted at 2026-03-01 12:15 UTC "
        '(DeviceLimit idle) unless a program uses it before; the annotation draco.dev/evict-unused: "false" keeps a pod.'
    )
    assert world.told == WARNED
    assert world.unused_claims.warned("idle") == 1
    assert await world.look(after_s=NOTICE_S - 1) == 1
    assert (world.told, world.evicted) == ([], [])
    await world.look(after_s=1)
    assert world.evicted == ["train-0"]
    assert world.told == [("Pod train-0", "UnusedEvicted")]
    assert world.count.labels("evicted")._value.get() == 1


async def test_a_claim_that_is_used_before_is_left_alone_and_warned_again_later() -> None:
    world = World()
    await world.look()
    world.unused = {}
    await world.look(after_s=NOTICE_S)
    assert world.evicted == []
    assert world.told == WARNED
    world.unused, world.since = {"train": "gpu-0"}, world.clock.now()
    assert await world.look(after_s=3.75 * 3600) == NOTICE_S
    assert world.told == WARNED


async def test_a_restart_of_the_operator_warns_again_and_makes_it_only_later() -> None:
    world = World()
    await world.look()
    world.restart()
    assert await world.look(after_s=NOTICE_S) == NOTICE_S
    assert (world.told, world.evicted) == (WARNED * 2, [])
    await world.look(after_s=NOTICE_S)
    assert world.evicted == ["train-0"]


async def test_an_agent_that_fell_silent_evicts_nobody() -> None:
    world = World()
    await world.look()
    world.silent_s = 361
    assert await world.look(after_s=NOTICE_S) == LOOK_AGAIN.total_seconds()
    assert world.evicted == []
    world.silent_s = 0
    await world.look(after_s=60)
    assert world.evicted == ["train-0"]
    assert world.told == [*WARNED, ("Pod train-0", "UnusedEvicted")], "the notice still holds"


@pytest.mark.parametrize("error", [Unreachable("gone"), NotFound(404, "NotFound", "no such kind")])
async def test_a_notice_outlasts_a_report_that_cannot_be_read(error: ApiError) -> None:
    world = World()
    await world.look()
    world.unreadable = error
    try:
        await world.look(after_s=NOTICE_S)
    except ApiError:
        assert isinstance(error, Unreachable), "the queue asks again"
    assert (world.evicted, world.unused_claims.trouble) == ([], "")
    world.unreadable = None
    await world.look(after_s=1)
    assert world.evicted == ["train-0"]


async def test_without_the_right_to_read_the_limit_says_which_value_to_set() -> None:
    world = World()
    changes: list[str] = []
    world.unused = {}
    world.unused_claims.when_changed.add(lambda: changes.append(world.unused_claims.trouble))
    world.unreadable = Forbidden(403, "Forbidden", "cannot get")
    await world.look()
    await world.look(after_s=60)
    assert (world.evicted, changes) == ([], [NOT_READABLE])
    world.unreadable = None
    await world.look(after_s=60)
    assert changes == [NOT_READABLE, ""]


async def test_without_the_right_to_evict_it_says_so_too() -> None:
    world = World()
    await world.look()
    world.refusal = Forbidden(403, "Forbidden", 'cannot create resource "pods/eviction"')
    await world.look(after_s=NOTICE_S)
    assert world.unused_claims.trouble == NOT_PERMITTED


async def test_a_budgets_refusal_is_told_once_an_hour_and_asked_again() -> None:
    world = World()
    await world.look()
    world.refusal = DisruptionRefused(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's budget.")
    assert await world.look(after_s=NOTICE_S) == LOOK_AGAIN.total_seconds()
    await world.look(after_s=300)
    assert world.told == [*WARNED, ("ResourceClaim train", "UnusedNotEvicted")]
    assert world.count.labels("refused")._value.get() == 2
    world.refusal = None
    await world.look(after_s=300)
    assert world.evicted == ["train-0"]


async def test_a_pod_with_two_claims_is_evicted_once_and_only_if_neither_is_used() -> None:
    world = World()
    both = runs("train-0", "train", "other")
    world.add(a_claim("other", on=["node-0/gpu-1"], reserved_for=["train-0"]), both)
    await world.look()
    assert world.told == [], "its other claim is used"
    world.unused["other"] = "gpu-1"
    keys = (KEY, ObjectKey("default", "other"))
    for later_s in (10, NOTICE_S):
        world.clock.pass_without_a_turn(later_s)
        for key in keys:
            await world.look(key)
    assert world.evicted == ["train-0"]
    await world.look(after_s=61)
    assert world.evicted == ["train-0"] * 2, "it is still there"


async def test_a_device_of_another_driver_is_not_the_gpu_of_its_name() -> None:
    world = World()
    world.add(a_claim("train", on=["node-0/gpu-0", "nic.example.com/node-0/gpu-0"], reserved_for=["train-0"]))
    assert await world.look() == LOOK_AGAIN.total_seconds()
    assert world.told == []


async def test_a_busy_member_keeps_the_other_pods_of_its_group() -> None:
    world = World()
    world.add(world.claims["train"], runs("train-0", "train", pod_group="g"))
    world.add(a_claim("mate", on=["node-0/gpu-1"], reserved_for=["train-1"]), runs("train-1", "mate", pod_group="g"))
    await world.look()
    assert world.told == []
    world.unused["mate"] = "gpu-1"
    assert await world.look(after_s=10) == NOTICE_S


async def test_the_claims_of_one_node_are_decided_by_one_reading() -> None:
    world = World()
    world.add(a_claim("other", on=["node-0/gpu-1"], reserved_for=["o"]), runs("o", "other"), unused="gpu-1")
    for name in ("train", "other"):
        await world.look(ObjectKey("default", name))
    assert world.reads == ["node-0"]
    await world.look(after_s=11)
    assert world.reads == ["node-0"] * 2


async def test_nothing_is_read_before_it_can_be_due_nor_for_pods_that_stay() -> None:
    world = World()
    young = PodStatus(phase="Running", start_time=MOMENT)
    tell(world.view, a_pod("train-0", claims=["train"], node="node-0", status=young))
    assert await world.look() == 3.75 * 3600
    tell(world.view, runs("train-0", "train", annotations={"draco.dev/evict-unused": "false"}))
    await world.look()
    assert world.reads == []


async def test_a_limit_that_changed_meanwhile_is_read_again_before_anybody_is_evicted() -> None:
    world = World()
    await world.look()
    world.limit = msgspec.structs.replace(LIMIT, metadata=msgspec.structs.replace(LIMIT.metadata, resource_version="7"))
    assert await world.look(after_s=NOTICE_S) == 1
    assert world.evicted == []
    assert await world.look() == LOOK_AGAIN.total_seconds()
    assert world.evicted == ["train-0"]


async def test_a_device_in_maintenance_is_left_to_its_drain_policy() -> None:
    world = World()
    await world.look()
    tell(world.view, a_maintenance_of("gpu-0"))
    await world.look(after_s=NOTICE_S)
    assert world.evicted == []


def a_maintenance_of(device: str) -> Any:
    made = a_maintenance("swap")
    status = {
        "phase": "Isolated",
        "isolatedAt": MOMENT,
        "devices": [{"driver": "gpu.nvidia.com", "pool": "node-0", "device": device}],
    }
    return msgspec.structs.replace(made, status=msgspec.convert(status, type(made.status)))


async def test_without_such_a_limit_no_claim_is_looked_at() -> None:
    world = World()
    woken: list[ObjectKey] = []
    world.unused_claims.subscribe(woken.append)
    assert world.unused_claims.all_keys() == [KEY]
    await world.look()
    woken.clear()
    forget(world.view, LIMIT)
    assert woken == [KEY], "so that its notice is forgotten"
    assert world.unused_claims.all_keys() == []
    assert await world.look(after_s=NOTICE_S) is None
    woken.clear()
    tell(world.view, runs("train-1", "train"))
    assert (woken, world.evicted) == ([], [])


async def test_it_wakes_for_whatever_it_depends_on() -> None:
    world = World()
    woken: list[ObjectKey] = []
    world.unused_claims.subscribe(woken.append)
    changes = [
        a_claim("train", on=["node-0/gpu-1"], reserved_for=["train-0"]),
        a_claim("train", on=["node-0/gpu-1"], reserved_for=["train-0", "train-1"]),
        runs("train-0", "train", annotations={"draco.dev/evict-unused": "false"}),
        a_pod("train-0", claims=["train"], node="node-0", status=PodStatus(phase="Succeeded")),
        Namespace(metadata=ObjectMeta(name="default", labels={"tenant": "b"})),
        a_limit("idle", tenant="b", unused=UnusedLimit(evict_after="4h")),
    ]
    for change in changes:
        woken.clear()
        tell(world.view, change)
        assert woken == [KEY], change
