"""Partitions on a node: kubelet's calls, what GpuNode and Events say, and what comes back after each kind of loss."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pynvml
import pytest

from draco.agent.files import Files
from draco.agent.hardware.nvml import Nvml
from draco.agent.record import checkpoint
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import InstanceState, OwnedInstance
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.draco import GpuMig, GpuNode, InstanceUse, MigMode, MigState
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES
from draco.resources.names import FIELD_MANAGER_OPERATOR, GpuUuid
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus import procfs, state
from draco_local.simulator.gpus.gpu_state import GpuProcess, GpuState
from tests.agents import SimulatedNode, eventually

POD = "0f5a2f0e-0000-4000-8000-00000000abcd"
CGROUP = f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{'c0' * 32}.scope"
SMALL = "gpu-0-mig-1g10gb-19-3"
LEFT = "gpu-0-mig-4g40gb-5-0"
RIGHT = "gpu-0-mig-3g40gb-9-4"


@pytest.fixture
async def node(client: Client, namespace: str, crds: None) -> AsyncIterator[SimulatedNode]:
    """A node with one simulated H100 in MIG mode."""
    async with a_divided_node(client, namespace) as made:
        yield made


@asynccontextmanager
async def a_divided_node(client: Client, namespace: str) -> AsyncIterator[SimulatedNode]:
    simulated = SimulatedNode(client, gpus=1)
    simulated.namespace = namespace
    by_hand.set_mode(simulated.gpus, 0, 1)
    await simulated.create()
    yield simulated
    await simulated.delete()


def hardware(node: SimulatedNode) -> GpuState:
    return state.load(node.gpus).gpus[0]


def places(node: SimulatedNode) -> list[tuple[int, int]]:
    """Profiles and starts of the complete instances."""
    return sorted((one.profile_id, one.start) for one in hardware(node).instances if one.compute)


async def mig(node: SimulatedNode) -> GpuMig:
    reported: GpuNode = await node.client.get(GPU_NODES, ObjectKey("", node.name))
    return (reported.status.gpus[0].mig if reported.status.gpus else None) or GpuMig()


async def divisible(node: SimulatedNode) -> GpuMig | None:
    found = await mig(node)
    return found if found.capable else None


async def uses(node: SimulatedNode) -> list[tuple[str, int, InstanceUse]]:
    return [(one.profile, one.start, one.use) for one in (await mig(node)).instances]


async def error_of(node: SimulatedNode, call: str, claim: Any) -> str:
    return str((await getattr(node, call)(claim))[claim.metadata.uid].error)


async def want(node: SimulatedNode, mode: MigMode, **fields: Any) -> None:
    """Write the operator's wanted state."""
    gpu = {"uuid": hardware(node).uuid, "policy": "pool", "mode": mode.value, **fields}
    await eventually(lambda: node.client.get(GPU_NODES, ObjectKey("", node.name)))
    await node.client.apply(
        GPU_NODES, ObjectKey("", node.name), {"spec": {"gpus": [gpu]}}, manager=FIELD_MANAGER_OPERATOR
    )


async def test_kubectl_shows_how_a_node_is_divided(node: SimulatedNode) -> None:
    claim = await node.claim(SMALL)
    async with node.running():
        await node.register()
        assert not await error_of(node, "prepare", claim)
        shown = await eventually(lambda: table(node, Instances=1, Prepared=1))
        assert [*shown] == [
            "Name",
            "Ready",
            "GPUs",
            "MIG",
            "Instances",
            "Driver",
            "Prepared",
            "Age",
            "DRA-Driver",
            "Agent",
        ]
        assert [shown[name] for name in ("GPUs", "MIG", "Instances", "Prepared")] == [1, 1, 1, 1]


async def table(node: SimulatedNode, **wanted: int) -> dict[str, Any] | None:
    """Output of `kubectl get gpunode -o wide`, once it is as expected."""
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    connection = node.client.connection
    url = f"{connection.server}{GPU_NODES.path(ObjectKey('', node.name))}"
    async with connection.lend_session() as session, session.get(url, headers=accept) as answer:
        found = await answer.json()
    columns = [each["name"] for each in found.get("columnDefinitions", ())]
    shown = dict(zip(columns, found["rows"][0]["cells"], strict=True)) if columns else {}
    return shown if wanted.items() <= shown.items() else None


async def test_a_partition_is_prepared_reported_and_given_up(node: SimulatedNode) -> None:
    claim = await node.claim(SMALL)
    async with node.running():
        assert await error_of(node, "prepare", claim) == ""
        [made] = hardware(node).instances
        content = json.loads((node.cdi / node.specs()[0]).read_text())
        [device] = content["devices"]
        assert device["containerEdits"]["env"] == [f"DRACO_DEVICE_GPU_0_MIG_1G10GB_19_3={made.compute[0].uuid}"]
        found = await eventually(lambda: reported_claim(node))
        assert found == ("1g.10gb", 3, made.compute[0].uuid, SMALL, str(claim.metadata.key))
        await eventually(lambda: device_uuid(node, claim, made.compute[0].uuid))
        assert await error_of(node, "unprepare", claim) == ""
        assert hardware(node).instances == []


async def reported_claim(node: SimulatedNode) -> tuple[str, int, str, str, str] | None:
    for one in (await mig(node)).instances:
        if one.use is InstanceUse.CLAIM:
            return one.profile, one.start, one.uuid, one.device, one.claim
    return None


async def device_uuid(node: SimulatedNode, claim: Any, uuid: str) -> bool:
    """Whether the claim's own status names the MIG device and calls it healthy."""
    found = await node.client.get(CLAIMS, claim.metadata.key)
    return any(
        (one.data["version"], one.data["uuid"], one.data["parentUUID"]) == (1, uuid, hardware(node).uuid)
        and {each.type: each.status for each in one.conditions} == {"Ready": "True", "Healthy": "True"}
        for one in found.status.devices
    )


async def test_a_board_is_reported_with_its_table(node: SimulatedNode) -> None:
    async with node.running():
        reported = await eventually(lambda: divisible(node))
        assert (reported.capable, reported.enabled, reported.state) == (True, True, MigState.READY)
        [table] = (await node.client.get(GPU_NODES, ObjectKey("", node.name))).status.boards
        assert table.name == reported.board
        assert {one.name: one.starts for one in table.profiles}["3g.40gb"] == [0, 4]


async def test_a_destroy_refused_as_in_use_names_the_holder_in_status_and_event(node: SimulatedNode) -> None:
    claim, next_one = await node.claim(SMALL), await node.claim(LEFT)
    async with node.running():
        await node.prepare(claim)
        [made] = hardware(node).instances
        holder = GpuProcess(
            pid=4711, gpu_instance=made.id, listed=False, name="dcgm-exporter", cgroup=CGROUP, hostname="dcgm-x7x2z"
        )
        faults.hold(node.gpus, 0, holder)
        who = f"process 4711 (dcgm-exporter) in container {'c0' * 6} of pod dcgm-x7x2z ({POD})"
        assert who in await error_of(node, "unprepare", claim)
        assert who in await error_of(node, "prepare", next_one)
        reported = await eventually(lambda: in_state(node, MigState.DIRTY))
        assert who in reported.message
        [instance] = reported.instances
        assert (instance.use, instance.holder, instance.uuid) == (InstanceUse.ORPHAN, who, "")
        [event] = await eventually(lambda: node.events("InstanceInUse"))
        assert who in event.message
        faults.release(node.gpus, 4711)
        await eventually(lambda: in_state(node, MigState.READY))
        assert hardware(node).instances == []
        assert await error_of(node, "unprepare", claim) == ""
        assert await error_of(node, "prepare", next_one) == ""


async def in_state(node: SimulatedNode, wanted: MigState) -> GpuMig | None:
    found = await mig(node)
    return found if found.state is wanted else None


async def test_an_instance_made_by_hand_is_reported_and_left_alone(node: SimulatedNode) -> None:
    by_hand.create_instance(node.gpus, 0, "3g.40gb", start=4, compute="none")
    claim = await node.claim(RIGHT)
    async with node.running():
        assert "made by somebody else" in await error_of(node, "prepare", claim)
        await eventually(lambda: is_used(node, [("3g.40gb", 4, InstanceUse.FOREIGN)]))
        [event] = await eventually(lambda: node.events("ForeignInstance"))
        assert "(3g.40gb at 4), without a compute instance, was made by somebody else" in event.message
        [left] = hardware(node).instances
        assert (left.profile_id, left.start, left.compute) == (9, 4, [])


async def test_what_an_agent_that_was_killed_may_have_made_is_left_to_whoever_finishes_it(node: SimulatedNode) -> None:
    """A step is recorded, and an instance exists there: the agent was killed meanwhile, or somebody else created it first."""
    files, boot = Files(), checkpoint.boot_id(procfs.tree(node.gpus))
    step = OwnedInstance(
        gpu=GpuUuid(hardware(node).uuid),
        profile_id=9,
        start=4,
        size=4,
        state=InstanceState.CREATING,
        boot_id=boot,
    )
    Checkpoint(node.checkpoint, files, boot_id=boot).replace([], boot_id=boot, instances=[step])
    made = by_hand.create_instance(node.gpus, 0, "3g.40gb", start=4, compute="none")
    claim = await node.claim(RIGHT)
    async with node.running():
        reported = await eventually(lambda: in_state(node, MigState.DIRTY))
        assert "may come from an interrupted step of this agent, or from somebody else" in reported.message
        [event] = await eventually(lambda: node.events("PartitionsUnsettled"))
        assert event.message.endswith("within 30 s. Nothing new is placed on it until then.")
        assert "may come from an interrupted step" in await error_of(node, "prepare", claim)
        [left] = hardware(node).instances
        assert left.compute == []
        nvml = Nvml(node.library)
        gpu = nvml.call("nvmlDeviceGetGpuInstanceById", nvml.handle(step.gpu), made.gpu_instance)
        nvml.call("nvmlGpuInstanceCreateComputeInstance", gpu, 2)
        await eventually(lambda: in_state(node, MigState.READY))
        await eventually(lambda: is_used(node, [("3g.40gb", 4, InstanceUse.FOREIGN)]))
        assert "made by somebody else" in await error_of(node, "prepare", claim)


async def is_used(node: SimulatedNode, wanted: list[tuple[str, int, InstanceUse]]) -> bool:
    return await uses(node) == wanted


@pytest.fixture
async def pair(client: Client, namespace: str, crds: None) -> AsyncIterator[SimulatedNode]:
    """A node with two simulated H100 in MIG mode."""
    simulated = SimulatedNode(client, gpus=2)
    simulated.namespace = namespace
    for gpu in range(2):
        by_hand.set_mode(simulated.gpus, gpu, 1)
    await simulated.create()
    yield simulated
    await simulated.delete()


async def told(node: SimulatedNode, reason: str, number: int) -> list[str]:
    """Notes of this many Events of a reason; empty until they exist."""
    found = await node.events(reason)
    return sorted(one.message for one in found) if len(found) == number else []


async def test_of_each_gpu_events_are_told_by_themselves(pair: SimulatedNode) -> None:
    async with pair.running():
        for gpu in range(2):
            by_hand.create_instance(pair.gpus, gpu, "3g.40gb", start=4)
        messages = await eventually(lambda: told(pair, "ForeignInstance", 2))
        for uuid, message in zip(sorted(one.uuid for one in state.load(pair.gpus).gpus), messages, strict=True):
            assert uuid in message
            assert "(3g.40gb at 4) was made by somebody else" in message


async def test_a_claim_given_up_on_two_gpus_alarms_nobody(pair: SimulatedNode) -> None:
    claim = await pair.claim("gpu-0-mig-3g40gb-9-4", "gpu-1-mig-3g40gb-9-4")
    async with pair.running():
        assert await error_of(pair, "prepare", claim) == ""
        assert await error_of(pair, "unprepare", claim) == ""
        by_hand.create_instance(pair.gpus, 0, "3g.40gb", start=4)
        await eventually(lambda: pair.events("ForeignInstance"))
        assert await pair.events("PartitionsUnsettled") == []


async def test_a_destroy_refused_because_of_nobody_known_is_told_in_an_event_too(node: SimulatedNode) -> None:
    claim = await node.claim(SMALL)
    async with node.running():
        await node.prepare(claim)
        faults.fail(node.gpus, "nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE)
        assert "a process that NVML does not list" in await error_of(node, "unprepare", claim)
        [event] = await eventually(lambda: node.events("InstanceInUse"))
        assert "cannot be destroyed, it is in use by a process that NVML does not list" in event.message
        assert await node.events("PartitionsUnsettled") == []


async def test_a_gpunode_that_somebody_deletes_is_written_anew(node: SimulatedNode) -> None:
    key = ObjectKey("", node.name)
    async with node.running():
        await eventually(lambda: divisible(node))
        for _ in range(3):  # the first time, the report from the start may still be under way
            before = await node.client.get(GPU_NODES, key)
            await node.client.delete(GPU_NODES, key)
            await eventually(lambda: is_another(node, before.metadata.uid))  # noqa: B023 - awaited at once


async def is_another(node: SimulatedNode, uid: str) -> bool:
    with suppress(NotFound):
        found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
        return found.metadata.uid != uid and bool(found.status.gpus)
    return False


async def test_a_layout_is_made_around_a_busy_neighbour_and_completed_when_it_ends(node: SimulatedNode) -> None:
    claim = await node.claim(SMALL)
    layout = [{"profile": "4g.40gb", "start": 0}, {"profile": "3g.40gb", "start": 4}]
    async with node.running():
        await node.prepare(claim)
        await want(node, MigMode.STATIC, layout=layout)
        await eventually(lambda: places(node) == [(9, 4), (19, 3)])

        async def waits() -> bool:
            changing = await in_state(node, MigState.CHANGING)
            return changing is not None and f"4g.40gb at 0 waits for claim {claim.metadata.key}" in changing.message

        await eventually(waits)
        assert await error_of(node, "unprepare", claim) == ""
        await eventually(lambda: places(node) == [(5, 0), (9, 4)])
        both = [("4g.40gb", 0, InstanceUse.LAYOUT), ("3g.40gb", 4, InstanceUse.LAYOUT)]
        await eventually(lambda: is_used(node, both))
        assert (await eventually(lambda: in_state(node, MigState.READY))).message == ""


async def test_warm_instances_are_kept_ready_given_to_claims_and_made_anew(node: SimulatedNode) -> None:
    async with node.running():
        await want(node, MigMode.DYNAMIC, warm=[{"profile": "1g.10gb", "count": 1}])
        await eventually(lambda: len(places(node)) == 1)
        [(_, start)] = places(node)
        claim = await node.claim(f"gpu-0-mig-1g10gb-19-{start}")
        uuid = hardware(node).instances[0].compute[0].uuid
        assert await error_of(node, "prepare", claim) == ""
        assert uuid in (node.cdi / node.specs()[0]).read_text()
        await eventually(lambda: len(places(node)) == 2)
        assert await error_of(node, "unprepare", claim) == ""
        await eventually(lambda: len(places(node)) == 1)


async def test_mig_mode_follows_the_policy_where_no_reset_is_needed(node: SimulatedNode) -> None:
    async with node.running():
        await want(node, MigMode.DISABLED)
        await eventually(lambda: hardware(node).mig_current == 0)
        await want(node, MigMode.DYNAMIC)
        await eventually(lambda: hardware(node).mig_current == 1)


@pytest.mark.parametrize("lost", ["reset", "driver reload", "by hand"])
async def test_a_layout_that_somebody_takes_away_is_made_again(node: SimulatedNode, lost: str) -> None:
    halves = [{"profile": "3g.40gb", "start": 0}, {"profile": "3g.40gb", "start": 4}]
    async with node.running():
        await want(node, MigMode.STATIC, layout=halves)
        await eventually(lambda: is_used(node, [("3g.40gb", start, InstanceUse.LAYOUT) for start in (0, 4)]))
        before = {one.compute[0].uuid for one in hardware(node).instances}
        if lost == "reset":
            faults.reset(node.gpus, 0)
        elif lost == "driver reload":
            faults.reload_driver(node.gpus)
        else:
            by_hand.destroy_instance(node.gpus, 0, hardware(node).instances[0].id)
        await eventually(lambda: places(node) == [(9, 0), (9, 4)])
        assert {one.compute[0].uuid for one in hardware(node).instances} != before


async def test_a_layout_is_made_once_the_reset_that_its_mig_mode_waits_for_has_come(
    client: Client, namespace: str, crds: None
) -> None:
    node = SimulatedNode(client, gpus=1, board="A100-40GB")
    await node.create()
    claim = await node.claim("gpu-0")

    async def takes_nothing_new() -> bool:
        return all(device.taints for one in await node.slices() for device in one.spec.devices)

    async def takes_claims() -> bool:
        return not any(device.taints for one in await node.slices() for device in one.spec.devices)

    async with node.running():
        assert not await error_of(node, "prepare", claim)
        layout = [{"profile": "3g.20gb", "start": 4}]
        await want(node, MigMode.STATIC, layout=layout, resetPermitted=True)
        await eventually(takes_nothing_new)  # else a busy GPU would never be reset
        await want(node, MigMode.STATIC, layout=layout)
        await eventually(takes_claims)  # the window has closed
        await want(node, MigMode.STATIC, layout=layout, resetPermitted=True)
        await eventually(takes_nothing_new)
        assert not await error_of(node, "unprepare", claim)
        await eventually(lambda: in_state(node, MigState.NEEDS_RESET))
        assert await takes_nothing_new()
        faults.reset(node.gpus, 0)
        await eventually(lambda: is_used(node, [("3g.20gb", 4, InstanceUse.LAYOUT)]))
        await eventually(takes_claims)
    await node.delete()


async def test_mig_mode_that_a_reload_of_the_driver_turned_off_comes_back(node: SimulatedNode) -> None:
    async with node.running():
        await want(node, MigMode.DYNAMIC, warm=[{"profile": "1g.10gb", "count": 1}])
        await eventually(lambda: len(places(node)) == 1)
        faults.reload_driver(node.gpus)
        await eventually(lambda: hardware(node).mig_current == 1)
        await eventually(lambda: len(places(node)) == 1)


async def test_a_layout_is_made_where_the_driver_is_loaded_after_the_agent_was_started(node: SimulatedNode) -> None:
    async with node.running():
        await want(node, MigMode.STATIC, layout=[{"profile": "3g.40gb", "start": 4}])
        await eventually(lambda: places(node) == [(9, 4)])
    faults.reboot(node.gpus)
    faults.break_driver(node.gpus)
    async with node.running():
        await node.register()
        await eventually(lambda: unreadable(node))
        faults.reload_driver(node.gpus)
        await eventually(lambda: places(node) == [(9, 4)])


async def test_a_wish_that_changes_nothing_is_reported_as_seen(node: SimulatedNode) -> None:
    """Otherwise a policy would report for minutes that the agent has not processed it."""
    layout = [{"profile": "3g.40gb", "start": 4}]
    async with node.running():
        await want(node, MigMode.STATIC, layout=layout)
        await eventually(lambda: is_used(node, [("3g.40gb", 4, InstanceUse.LAYOUT)]))
        await eventually(lambda: all_seen(node))
        await want(node, MigMode.STATIC, layout=layout, resetPermitted=True)
        await eventually(lambda: all_seen(node))


async def all_seen(node: SimulatedNode) -> bool:
    found: GpuNode = await node.client.get(GPU_NODES, ObjectKey("", node.name))
    return found.status.observed_generation == found.metadata.generation


async def unreadable(node: SimulatedNode) -> bool:
    found: GpuNode = await node.client.get(GPU_NODES, ObjectKey("", node.name))
    return {one.type: one.status for one in found.status.conditions}.get("Readable") == "False"


@pytest.mark.parametrize("lost", ["driver reload", "reboot"])
async def test_lost_instances_are_made_again_for_claims_and_containers_get_the_new_ones(
    node: SimulatedNode, lost: str
) -> None:
    claim = await node.claim(RIGHT)
    async with node.running():
        await node.prepare(claim)
        before = hardware(node).instances[0].compute[0].uuid
        if lost == "driver reload":
            faults.reload_driver(node.gpus)
            await eventually(lambda: places(node) == [(9, 4)])
    if lost == "reboot":
        faults.reboot(node.gpus)
        assert places(node) == []
    async with node.running():
        assert await error_of(node, "prepare", claim) == ""
        after = hardware(node).instances[0].compute[0].uuid
        assert after != before
        await eventually(lambda: after in (node.cdi / node.specs()[0]).read_text())
        await eventually(lambda: device_uuid(node, claim, after))


async def test_a_damaged_record_is_rebuilt_from_the_gpus_and_the_api_server(node: SimulatedNode) -> None:
    held = await node.claim(RIGHT)
    by_hand.create_instance(node.gpus, 0, "1g.10gb", start=3)
    async with node.running():
        await want(node, MigMode.DYNAMIC, warm=[{"profile": "2g.20gb", "count": 1}])
        await node.prepare(held)
        warm = ("2g.20gb", 0, InstanceUse.WARM)
        foreign = ("1g.10gb", 3, InstanceUse.FOREIGN)
        all_three = [warm, foreign, ("3g.40gb", 4, InstanceUse.CLAIM)]
        await eventually(lambda: is_used(node, all_three))
        before = hardware(node).instances
    node.checkpoint.write_bytes(b'{"version":2,"che')
    async with node.running():
        await eventually(lambda: node.events("CheckpointDamaged"))
        await eventually(lambda: is_used(node, all_three))
        assert hardware(node).instances == before
        assert await error_of(node, "prepare", held) == ""
        assert await error_of(node, "unprepare", held) == ""
        await eventually(lambda: places(node) == [(14, 0), (19, 3)])
