"""Each family of faults, from simulated hardware to slices, GpuNode, claims and Events."""

from collections.abc import Callable
from pathlib import Path

import pytest

from draco.agent.files import Files
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.state import RemappedRows, load
from tests.agents import SimulatedNode, eventually
from tests.component.agent.test_sick_gpus import taints

LINK = 3
CAUSES: dict[str, tuple[Callable[[Path], None], tuple[str, str, str]]] = {
    "xid": (lambda path: faults.xid(path, 0, 79), ("draco.dev/xid", "Xid79", "NoSchedule")),
    "unknown xid": (lambda path: faults.xid(path, 0, 9999), ("draco.dev/xid", "Xid9999", "None")),
    "ecc": (lambda path: faults.ecc_errors(path, 0, uncorrected=1), ("draco.dev/ecc", "EccUncorrected", "None")),
    "sram": (lambda path: faults.sram_threshold_exceeded(path, 0), ("draco.dev/ecc", "EccThreshold", "NoSchedule")),
    "rows": (
        lambda path: faults.remapped_rows(path, 0, RemappedRows(failed=True)),
        ("draco.dev/row-remap", "RowRemapFailed", "NoSchedule"),
    ),
    "heat": (lambda path: faults.temperature(path, 0, 120), ("draco.dev/thermal", "ThermalSlowdown", "None")),
    "link": (
        lambda path: faults.nvlink(path, 0, LINK, down=True),
        ("draco.dev/nvlink", "NvLinkDown", "NoSchedule"),
    ),
    "fabric": (lambda path: faults.fabric(path, 0, "failed"), ("draco.dev/fabric", "FabricFailed", "NoSchedule")),
    "recovery": (lambda path: faults.recovery_action(path, 0, 1), ("draco.dev/recovery", "NeedsReset", "NoSchedule")),
    "lost": (lambda path: faults.lose(path, 0), ("draco.dev/lost", "Lost", "NoSchedule")),
    "driver": (
        lambda path: faults.hang(path, "nvmlDeviceGetMemoryInfo", gpu=0),
        ("draco.dev/driver", "DriverHangs", "NoSchedule"),
    ),
    "unreadable": (
        lambda path: faults.make_unreadable(path, 0),
        ("draco.dev/unreadable", "Unreadable", "NoSchedule"),
    ),
}


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize("cause", sorted(CAUSES))
async def test_each_fault_is_a_taint_of_its_family_and_stands_in_the_ledger(node: SimulatedNode, cause: str) -> None:
    break_it, expected = CAUSES[cause]
    async with node.running(nvml_limit_s=1.0):
        await node.published(2)
        break_it(node.gpus)

        async def tainted() -> bool:
            found = await taints(node)
            return expected in found["gpu-0"] and found["gpu-1"] == []

        await eventually(tainted)

        async def reported() -> bool:
            found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
            return any(
                one.name == expected[1] for gpu in found.status.gpus if gpu.device == "gpu-0" for one in gpu.faults
            )

        await eventually(reported)
        if cause == "driver":
            faults.stop_failing(node.gpus)


@pytest.mark.usefixtures("crds")
async def test_a_gpu_that_is_healed_is_offered_again_and_both_are_said_in_events(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        await node.published(2)
        assert not (await node.prepare(claim))[claim.metadata.uid].error
        faults.recovery_action(node.gpus, 0, 1)

        async def tainted() -> bool:
            return bool((await taints(node))["gpu-0"])

        async def ill() -> bool:
            devices = (await node.client.get(CLAIMS, claim.metadata.key)).status.devices
            return ("Healthy", "False", "NeedsReset") in [
                (one.type, one.status, one.reason) for device in devices for one in device.conditions
            ]

        await eventually(tainted)
        await eventually(ill)
        assert not (await node.unprepare(claim))[claim.metadata.uid].error

        async def kept() -> bool:
            devices = (await node.client.get(CLAIMS, claim.metadata.key)).status.devices
            said = {one.type: (one.status, one.reason) for device in devices for one in device.conditions}
            return said == {"Ready": ("False", "Unprepared"), "Healthy": ("False", "NeedsReset")}

        await eventually(kept)
        faults.reset(node.gpus, 0)

        async def free() -> bool:
            return not (await taints(node))["gpu-0"]

        await eventually(free)

        async def told() -> bool:
            return bool(await node.events("GpuFault")) and bool(await node.events("GpuFaultEnded"))

        await eventually(told)
        assert not (await node.prepare(claim))[claim.metadata.uid].error, "what was repaired can be had again"


@pytest.mark.usefixtures("crds")
async def test_what_the_operator_says_of_a_fault_is_heeded_and_outlives_the_agent(node: SimulatedNode) -> None:
    key = ObjectKey("", node.name)

    async def tainted() -> list[tuple[str, str, str]]:
        return (await taints(node))["gpu-0"]

    async def say(effect: str) -> None:
        [uuid] = [gpu.uuid for gpu in (await node.client.get(GPU_NODES, key)).status.gpus if gpu.device == "gpu-0"]
        health = [{"uuid": uuid, "fault": "Xid95", "effect": effect, "policy": "lenient"}]
        await node.client.apply(GPU_NODES, key, {"spec": {"health": health}}, manager="draco-operator")

    async def becomes(*expected: tuple[str, str, str]) -> None:
        async def has() -> bool:
            return await tainted() == list(expected)

        await eventually(has)

    async with node.running():
        await node.published(2)
        faults.xid(node.gpus, 0, 95)
        await becomes(("draco.dev/xid", "Xid95", "NoSchedule"))

        async def reported() -> bool:
            return bool((await node.client.get(GPU_NODES, key)).status.gpus[0].faults)

        await eventually(reported)
        await say("Announce")
        await becomes(("draco.dev/xid", "Xid95", "None"))
        await say("NoExecute")
        await becomes(("draco.dev/xid", "Xid95", "NoExecute"))
        await say("Evict")
        await becomes(("draco.dev/xid", "Xid95", "NoSchedule"))
        await say("Record")
        await becomes()
        claim = await node.claim("gpu-0")
        assert not (await node.prepare(claim))[claim.metadata.uid].error
    async with node.running():

        async def policy() -> bool:
            [fault] = (await node.client.get(GPU_NODES, key)).status.gpus[0].faults
            return (fault.name, fault.policy, fault.effect.value) == ("Xid95", "lenient", "Record")

        await eventually(policy)
        await becomes()


class _Dies(Files):
    """Files of an agent that dies at a given write of the ledger, before or after it is done."""

    def __init__(self, at: int, *, before: bool) -> None:
        self._left = at
        self._before = before
        self.died = False

    def write(self, path: Path, content: bytes) -> None:
        if path.name != "faults.json":
            super().write(path, content)
            return
        self._left -= 1
        if self._left == 0 and self._before:
            self.died = True
            raise OSError("The machine has lost its power.")
        super().write(path, content)


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_fault_that_was_published_is_known_to_the_next_agent(node: SimulatedNode, at: int) -> None:
    """If it was not written, the agent retries for as long as it runs."""
    expected = ("draco.dev/xid", "Xid119", "NoSchedule")
    files = _Dies(at, before=True)

    async def tainted() -> bool:
        return expected in (await taints(node))["gpu-0"]

    def written() -> bool:
        record = node.folder / "agent" / "faults.json"
        return record.exists() and b"Xid119" in record.read_bytes()

    async with node.running(files=files):
        await node.published(2)
        faults.xid(node.gpus, 0, 119)
        await eventually(tainted)
        await eventually(written)
    async with node.running():
        await eventually(tainted)


@pytest.mark.usefixtures("crds")
async def test_of_a_divided_gpu_what_overlaps_the_sick_instance_is_tainted_and_nothing_else(
    node: SimulatedNode,
) -> None:
    key = ObjectKey("", node.name)
    sick = "gpu-0-mig-1g10gb-19-2"
    async with node.running():

        async def known() -> bool:
            return bool((await node.client.get(GPU_NODES, key)).status.gpus)

        await eventually(known)
        wanted = [
            {"uuid": gpu.uuid, "policy": "p", "mode": "Dynamic"}
            for gpu in (await node.client.get(GPU_NODES, key)).status.gpus
        ]
        await node.client.apply(GPU_NODES, key, {"spec": {"gpus": wanted}}, manager="draco-operator")

        async def divided() -> bool:
            return sick in await taints(node)

        await eventually(divided)
        before = await taints(node)
        claim = await node.claim(sick)
        assert not (await node.prepare(claim))[claim.metadata.uid].error
        [instance] = load(node.gpus).gpus[0].instances

        async def seen() -> bool:
            return bool((await node.client.get(GPU_NODES, key)).status.mig_instance_count)

        await eventually(seen)
        faults.xid(node.gpus, 0, 46, gi=instance.id, ci=0)

        async def tainted() -> bool:
            return bool((await taints(node))[sick])

        await eventually(tainted)
        hit = {name for name, found in (await taints(node)).items() if found}
        assert {"gpu-0", sick} <= hit
        alone = {name for name in before if name.startswith("gpu-0-mig-1g10gb-19")} - {sick}
        assert alone
        assert not hit & alone
        assert not any(name.startswith("gpu-1") for name in hit)
        # The pod that has the GPU is told, and a new claim gets a healthy one.
        async with node.health() as stream:
            states = {one.device.device_name: one.health for one in (await stream.read()).devices}
        assert (states[sick], states["gpu-0"]) == (2, 1)
        well, other = await node.claim(min(alone)), await node.claim("gpu-0-mig-2g20gb-14-2")
        assert not (await node.prepare(well))[well.metadata.uid].error
        assert not (await node.unprepare(claim))[claim.metadata.uid].error
        assert "Xid46" in (await node.prepare(other))[other.metadata.uid].error
