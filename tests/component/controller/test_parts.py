"""Whole GPUs and their partitions on a real API server: maintenance of one covers the others."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

import msgspec
import pytest

from draco.agent.hardware.gpus import DriverInfo, GpuMigView
from draco.agent.publish import partitions
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import IsolatedGpu
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase
from draco.resources.api.meta import ObjectKey
from draco.resources.api.slices import Device
from draco.resources.api.taints import DeviceToleration
from draco.resources.kinds import CLAIMS, DEVICE_CLASSES, DEVICE_MAINTENANCES, GPU_NODES, NODES, SLICES
from draco_local.cluster.controlplane import ControlPlane
from tests.builders import a_claim, a_device_class, a_gpu, a_rule, a_slice
from tests.component.controller.replicas import an_operator, until
from tests.component.controller.test_maintenance import RULES, Lab, as_json

pytestmark = pytest.mark.usefixtures("crds")

H100 = BOARDS["H100-80GB"]
PARTS = {partitions.partition_name("gpu-0", place) for place in H100.placements}
ALL = len(PARTS) + 1
SMALL = [f"gpu-0-mig-1g10gb-19-{start}" for start in range(7)]


class DividedLab(Lab):
    """A pool with one GPU in Dynamic MIG beside a plain one, under a driver that Draco's agent does not serve."""

    generation = 0
    isolated: tuple[IsolatedGpu, ...] = ()

    async def publish(self, *, divided: bool = True) -> None:
        """Publish a slice of counters and one of devices, or one without partitions, as an agent replaces them."""
        gpu = a_gpu(0)
        mig = GpuMigView(gpu=gpu.uuid, board=H100)
        one = partitions.Divisible(gpu=gpu, mig=mig, board=H100, isolated=self.isolated)
        driver = DriverInfo("580.1", "13.0", "13.580")
        devices = partitions.devices([one], driver, partitions.order([one]))
        plain = [Device(name="gpu-1")]
        self.generation += 1
        made = [
            a_slice(
                self.pool,
                [],
                driver=self.driver,
                name=f"{self.pool}-0",
                of=2,
                shared_counters=partitions.counters([one]),
            ),
            a_slice(
                self.pool,
                [*(devices if divided else devices[:1]), *plain],
                driver=self.driver,
                name=f"{self.pool}-1",
                of=2,
            ),
        ]
        for item in made:
            pool = msgspec.structs.replace(item.spec.pool, generation=self.generation)
            spec = as_json(msgspec.structs.replace(item.spec, pool=pool))
            manifest = {"metadata": {"name": item.metadata.name}, "spec": spec}
            await self.client.apply(SLICES, item.metadata.key, manifest, manager="test")

    async def tainted(self) -> set[str]:
        return {str(rule.spec.device_selector.device) for rule in await self.rules() if rule.spec.device_selector}

    async def is_tainted(self, devices: Iterable[str]) -> None:
        wanted = set(devices)

        async def look() -> bool:
            return await self.tainted() == wanted

        await until(look, what=f"taints on exactly {len(wanted)} devices")

    async def message(self, key: ObjectKey, text: str) -> DeviceMaintenance:
        async def look() -> DeviceMaintenance | None:
            request = await self.client.get(DEVICE_MAINTENANCES, key)
            return request if text in request.status.message else None

        return await until(look, what=f"a message with {text!r}")

    async def clean(self) -> None:
        await super().clean()
        await self.withdraw()

    async def withdraw(self) -> None:
        """Delete the slices."""
        for number in range(2):
            with suppress(NotFound):
                await self.client.delete(SLICES, ObjectKey("", f"{self.pool}-{number}"))


@pytest.fixture
async def lab(client: Client, namespace: str) -> AsyncIterator[DividedLab]:
    made = DividedLab(client, namespace)
    await made.publish()
    yield made
    await made.clean()


async def test_work_on_a_gpu_waits_for_all_seven_partitions(served: ControlPlane, lab: DividedLab) -> None:
    held = [await lab.hold(f"tenant-{number}", device) for number, device in enumerate(SMALL)]
    async with an_operator(served):
        key = await lab.request(device="gpu-0")
        busy = await lab.phase(key, MaintenancePhase.ISOLATED)
        assert busy.status.in_use == 7
        assert await lab.tainted() == {"gpu-0", *PARTS}
        assert {each.uuid for each in busy.status.devices} == {a_gpu(0).uuid}
        for claim in held[:-1]:
            await lab.let_go(claim)
        await lab.message(key, f"1 of {ALL} devices is still in use")
        await lab.let_go(held[-1])
        ready = await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        assert (ready.status.in_use, ready.status.device_count) == (0, ALL)
        await lab.finish(key)
        await lab.phase(key, MaintenancePhase.COMPLETED)
        assert await lab.rules() == []


class AgentsLab(DividedLab):
    """A lab with a stand-in for Draco's agent, which publishes by its GpuNode when the test tells it to."""

    @property
    def key(self) -> ObjectKey:
        return ObjectKey("", self.pool)

    async def joins(self, *, isolates: bool = True, publishes: bool = True) -> None:
        await self.client.create(NODES, {"metadata": {"name": self.pool}})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        await self.client.patch(NODES, self.key, {"status": ready}, subresource="status")
        decided = {"decided": [a_gpu(0).uuid]}
        await self.client.create(GPU_NODES, {"metadata": {"name": self.pool}, "spec": decided})
        published = {
            "type": "Published",
            "status": str(publishes),
            "reason": "SlicesWritten" if publishes else "NotWritten",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        gpu = {"device": "gpu-0", "uuid": a_gpu(0).uuid, "health": "Healthy"}
        said = {
            "driver": self.driver,
            "driverVersion": "580.1",
            "isolates": isolates,
            "gpus": [gpu],
            "conditions": [published],
        }
        await self.client.apply(GPU_NODES, self.key, {"status": said}, manager="agent", subresource="status")

    async def told(self, *requests: ObjectKey) -> list[IsolatedGpu]:
        async def look() -> tuple[list[IsolatedGpu]] | None:
            isolated = (await self.client.get(GPU_NODES, self.key)).spec.isolated
            return (isolated,) if [each.request for each in isolated] == [key.name for key in requests] else None

        (found,) = await until(look, what=f"the agent is told of {requests}")
        self.isolated = tuple(found)
        return found

    async def clean(self) -> None:
        await super().clean()
        for kind in (GPU_NODES, NODES):
            with suppress(NotFound):
                await self.client.delete(kind, self.key)


@pytest.fixture
async def agents(client: Client, namespace: str) -> AsyncIterator[AgentsLab]:
    made = AgentsLab(client, namespace)
    await made.publish(divided=False)
    yield made
    await made.clean()


async def test_work_waits_for_the_agent_to_publish_the_gpu_with_the_taint(
    served: ControlPlane, agents: AgentsLab
) -> None:
    await agents.joins()
    async with an_operator(served):
        key = await agents.request(device="gpu-0")
        await agents.message(key, f"waiting for Draco's agent on {agents.pool} to publish gpu-0 with the taint")
        (isolated,) = await agents.told(key)
        assert (isolated.uuid, isolated.taint.effect) == (a_gpu(0).uuid, "NoSchedule")
        await agents.publish(divided=False)
        await agents.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await agents.publish()
        await agents.is_tainted({"gpu-0", *PARTS})
        await agents.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await agents.finish(key)
        assert await agents.told() == []


async def test_without_rules_the_taints_in_the_slices_isolate_a_gpu_and_its_partitions(
    served: ControlPlane, agents: AgentsLab
) -> None:
    await agents.joins()
    async with an_operator(served, without_taint_rules=True):
        busy = await agents.hold("train", "gpu-0")
        key = await agents.request(device="gpu-0")
        await agents.message(key, f"0 of 1 device is isolated; waiting for Draco's agent on {agents.pool}")
        await agents.told(key)
        await agents.publish(divided=False)
        await agents.phase(key, MaintenancePhase.ISOLATED)
        await agents.publish()
        await agents.let_go(busy)
        ready = await agents.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await agents.message(key, f"{ALL} devices are isolated")
        assert [each.rule for each in ready.status.devices] == [""] * len(ready.status.devices)
        await agents.withdraw()
        await agents.message(key, f"{ALL} devices are isolated")
        await agents.finish(key)
        done = await agents.phase(key, MaintenancePhase.COMPLETED)
        assert done.status.device_count == ALL
        assert await agents.told() == []
    assert await agents.rules() == []


# A status, its Event, the GpuNode and further statuses until work can start; a second operator does whatever is missing.
@pytest.mark.parametrize("writes", [1, 2, 3, 4])
async def test_without_rules_an_operator_that_dies_after_any_write_leaves_nothing_undone(
    served: ControlPlane, agents: AgentsLab, writes: int
) -> None:
    await agents.joins()
    key = await agents.request(device="gpu-0")
    async with an_operator(served, without_taint_rules=True, dies_after_writes=writes) as (_, operating):
        if writes > 2:  # the agent follows as soon as it is told
            await agents.told(key)
            await agents.publish(divided=False)
        await asyncio.wait({operating}, timeout=60)
        assert operating.done(), f"there are less than {writes} writes on the way"
    async with an_operator(served, without_taint_rules=True):
        await agents.told(key)
        await agents.publish(divided=False)
        await agents.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await agents.finish(key)
        await agents.phase(key, MaintenancePhase.COMPLETED)


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_request_that_ends_while_no_operator_runs_is_taken_back_by_the_next(
    served: ControlPlane, agents: AgentsLab, deleted: bool
) -> None:
    await agents.joins()
    async with an_operator(served):
        key = await agents.request(device="gpu-0")
        await agents.told(key)
    if deleted:
        await agents.client.delete(DEVICE_MAINTENANCES, key)
    else:
        await agents.finish(key)
    async with an_operator(served):
        assert await agents.told() == []


@pytest.mark.parametrize("so", [{"isolates": False}, {"publishes": False}])
async def test_an_agent_of_an_older_version_or_one_that_gives_way_to_another_plugin_is_not_waited_for(
    served: ControlPlane, agents: AgentsLab, so: dict[str, bool]
) -> None:
    await agents.joins(**so)
    async with an_operator(served):
        key = await agents.request(device="gpu-0")
        await agents.phase(key, MaintenancePhase.IN_MAINTENANCE)


async def test_work_on_a_partition_leaves_alone_what_does_not_overlap_it(served: ControlPlane, lab: DividedLab) -> None:
    neighbour = await lab.hold("neighbour", SMALL[6])
    async with an_operator(served):
        key = await lab.request(device=SMALL[0])
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        tainted = await lab.tainted()
        assert {"gpu-0", SMALL[0], "gpu-0-mig-7g80gb-0-0", "gpu-0-mig-2g20gb-14-0"} <= tainted
        assert not tainted & {*SMALL[1:], "gpu-0-mig-2g20gb-14-2", "gpu-1"}
        whole = await lab.hold("whole", "gpu-0")
        await lab.message(key, f"gpu-0 of {lab.pool} by {lab.namespace}/whole")
        await lab.let_go(whole)
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
    assert (await lab.client.get(CLAIMS, neighbour)).status.allocation is not None


async def test_partitions_published_during_the_work_are_isolated_and_hold_it_up_when_held(
    served: ControlPlane, lab: DividedLab
) -> None:
    await lab.publish(divided=False)
    async with an_operator(served):
        key = await lab.request(device="gpu-0")
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        assert await lab.tainted() == {"gpu-0"}
        await lab.publish()
        await lab.is_tainted({"gpu-0", *PARTS})
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        landed = await lab.hold("landed", SMALL[2])  # its allocation was under way
        await lab.phase(key, MaintenancePhase.ISOLATED)
        await lab.publish(divided=False)
        await lab.message(key, f"{SMALL[2]} of {lab.pool} by {lab.namespace}/landed")
        await lab.let_go(landed)
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)


async def test_a_claim_that_tolerates_everything_holds_up_the_promise_until_it_is_gone(
    served: ControlPlane, lab: DividedLab
) -> None:
    nics = a_device_class(f"nic-{lab.pool}", selector="device.driver == 'nic.example.com'")
    gpus = a_device_class(f"gpu-{lab.pool}", selector=f"device.driver == '{lab.driver}'")
    for each in (nics, gpus):
        await lab.client.create(DEVICE_CLASSES, {"metadata": {"name": each.metadata.name}, "spec": as_json(each.spec)})
    everything = [DeviceToleration(operator="Exists")]
    of_nics = a_claim("nics", namespace=lab.namespace, device_class=nics.metadata.name, tolerations=everything)
    of_nothing = a_claim("nothing", namespace=lab.namespace, device_class=f"no-{lab.pool}", tolerations=everything)
    for claim in (of_nics, of_nothing):
        name = {"name": claim.metadata.name, "namespace": lab.namespace}
        await lab.client.create(CLAIMS, {"metadata": name, "spec": as_json(claim.spec)})
    async with an_operator(served):
        key = await lab.request(device="gpu-0")
        # Pods that wait for devices of another kind, or of a missing class.
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        greedy = a_claim("greedy", namespace=lab.namespace, device_class=gpus.metadata.name, tolerations=everything)
        name = {"name": "greedy", "namespace": lab.namespace}
        await lab.client.create(CLAIMS, {"metadata": name, "spec": as_json(greedy.spec)})
        said = await lab.message(key, f"{lab.namespace}/greedy waits for devices and tolerates the taint")
        assert said.status.phase is MaintenancePhase.ISOLATED
        await lab.client.delete(CLAIMS, ObjectKey(lab.namespace, "greedy"))
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
        await lab.withdraw()  # the node reboots and will publish the same again
        await lab.client.create(CLAIMS, {"metadata": name, "spec": as_json(greedy.spec)})
        await lab.phase(key, MaintenancePhase.ISOLATED)
        await lab.client.delete(CLAIMS, ObjectKey(lab.namespace, "greedy"))
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
    for each in (nics, gpus):
        await lab.client.delete(DEVICE_CLASSES, each.metadata.key)


# A rule for each, and three statuses until work can start; a second operator does whatever is missing.
@pytest.mark.parametrize("writes", [1, 2, ALL // 2, ALL - 1, ALL, ALL + 1, ALL + 2, ALL + 3])
async def test_an_operator_that_dies_after_any_write_leaves_no_part_out(
    served: ControlPlane, lab: DividedLab, writes: int
) -> None:
    key = await lab.request(device="gpu-0")
    async with an_operator(served, dies_after_writes=writes) as (_, operating):
        await asyncio.wait({operating}, timeout=60)
        assert operating.done(), f"there are less than {writes} writes on the way"
    async with an_operator(served):
        await lab.phase(key, MaintenancePhase.IN_MAINTENANCE)
    assert await lab.tainted() == {"gpu-0", *PARTS}


async def admins_rule(lab: DividedLab, device: str = "gpu-0", effect: str = "NoSchedule") -> ObjectKey:
    rule = a_rule(f"admins-{lab.pool}", driver=lab.driver, pool=lab.pool, device=device, effect=effect)
    await lab.client.create(RULES, {"metadata": {"name": rule.metadata.name}, "spec": as_json(rule.spec)})
    return rule.metadata.key


async def test_a_rule_on_a_gpu_reaches_its_partitions_as_they_come_and_goes_with_the_rule(
    served: ControlPlane, lab: DividedLab
) -> None:
    await lab.publish(divided=False)
    rule = await admins_rule(lab)
    before = await lab.client.get(RULES, rule)
    async with an_operator(served):
        await lab.publish()
        await lab.is_tainted({"gpu-0", *PARTS})
        assert {each.spec.taint.effect for each in await lab.rules()} == {"NoSchedule"}
        await lab.client.patch(RULES, rule, {"spec": {"taint": {"effect": "NoExecute"}}})

        async def harder() -> bool:
            return {each.spec.taint.effect for each in await lab.rules()} == {"NoExecute"}

        await until(harder, what="the effect of all rules")
        (extended, *_) = [each for each in await lab.rules() if each.metadata.name != rule.name]
        await lab.client.delete(RULES, extended.metadata.key)
        await lab.is_tainted({"gpu-0", *PARTS})
        after = await lab.client.get(RULES, rule)
        assert (after.metadata.uid, after.metadata.labels) == (before.metadata.uid, {})
        await lab.client.delete(RULES, rule)
        await lab.no_rules()


async def test_extensions_of_a_rule_deleted_while_no_operator_ran_are_collected(
    control_plane: ControlPlane, lab: DividedLab
) -> None:
    rule = await admins_rule(lab)
    async with an_operator(control_plane):
        await lab.is_tainted({"gpu-0", *PARTS})
    await lab.client.delete(RULES, rule)
    await lab.no_rules(within_s=90)


@pytest.mark.parametrize("writes", [1, 2, ALL - 2, ALL - 1])
async def test_a_second_operator_extends_what_a_first_that_died_left_out(
    served: ControlPlane, lab: DividedLab, writes: int
) -> None:
    rule = await admins_rule(lab)
    async with an_operator(served, dies_after_writes=writes) as (_, operating):
        await asyncio.wait({operating}, timeout=60)
        assert operating.done(), f"there are less than {writes} writes on the way"
    async with an_operator(served), an_operator(served):
        await lab.is_tainted({"gpu-0", *PARTS})
    await lab.client.delete(RULES, rule)
    async with an_operator(served, dies_after_writes=writes) as (_, operating):
        await asyncio.wait({operating}, timeout=60)
    async with an_operator(served):
        await lab.no_rules()
