"""A driver whose packages were upgraded while the old modules run: nothing new is prepared until it is reloaded."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pynvml
import pytest

from draco.kube.connect.client import Client
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.state import mutate
from tests.agents import SimulatedNode, eventually
from tests.component.agent.test_hung_driver import given_up, prepared, readable
from tests.component.agent.test_sick_gpus import taints
from tests.unit.agent.driver_on_disk import VERSION, a_driver

NEW = "595.58.03"
PARTS = ("gpu-1-mig-1g10gb-19-0", "gpu-1-mig-1g10gb-19-1")


@pytest.fixture
async def node(client: Client, namespace: str) -> AsyncIterator[SimulatedNode]:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await client.connection.request(
        "PATCH",
        f"/api/v1/namespaces/{namespace}",
        body=json.dumps(label).encode(),
        content_type="application/merge-patch+json",
    )
    simulated = SimulatedNode(client, gpus=4)
    simulated.namespace = namespace
    await simulated.create()
    yield simulated
    await simulated.delete()


def upgrade_packages(root: Path) -> None:
    """Remove NVML first: it shows which driver is installed, so no spec is written from the files left meanwhile."""
    found = [path for path in root.rglob("*") if VERSION in path.name and not path.is_dir()]
    for path in sorted(found, key=lambda path: "libnvidia-ml" not in path.name):
        path.unlink()
    a_driver(root, version=NEW)


def specs(node: SimulatedNode) -> list[str]:
    return [path.read_text() for path in sorted(node.cdi.iterdir())]


@pytest.mark.usefixtures("crds")
async def test_nothing_is_prepared_with_files_that_do_not_go_with_the_loaded_driver(node: SimulatedNode) -> None:
    root = node.folder / "driver"
    a_driver(root)
    changes = {"driver_root": Path("/driver"), "driver_root_view": root, "rescan_s": 0.2}
    held, part, ended = await node.claim("gpu-0"), await node.claim(PARTS[0]), await node.claim("gpu-2")
    late, late_part = await node.claim("gpu-3"), await node.claim(PARTS[1])
    looking = await node.claim("gpu-2", admin=True)

    async def says(*expected: str) -> None:
        async def said() -> bool:
            devices = await taints(node)
            wrong = [("draco.dev/driver", "DriverMismatch", "NoSchedule")] if expected[0] == "False" else []
            whole = {name: device for name, device in devices.items() if "-mig-" not in name}
            return (await readable(node))[:2] == expected and set(map(tuple, whole.values())) == {tuple(wrong)}

        await eventually(said)

    async with node.running(**changes):
        await says("True", "DriverAnswers")
        for claim in (held, part, ended):
            assert not await prepared(node, claim)
        before = specs(node)
        assert all(f"libcuda.so.{VERSION}" in spec for spec in before)
        upgrade_packages(root)
        # Even before the GPUs were read again.
        assert "cannot be prepared: The NVIDIA driver's files below /driver" in await prepared(node, looking)
        await says("False", "DriverMismatch")
        assert (await readable(node))[2] == (
            f"The NVIDIA driver's files below /driver are of version {NEW}, and the loaded kernel modules are of {VERSION}: "
            "containers could not use a GPU. Reload the driver or reboot the node."
        )
        for claim in (late, late_part):
            assert "takes no new work" in await prepared(node, claim)
            assert "Reload the driver or reboot the node" in await prepared(node, claim)
        assert "Reload the driver or reboot the node" in await prepared(node, looking)
        for claim in (held, part, ended):
            assert not await prepared(node, claim), "kubelet asks again for what runs"
        assert specs(node) == before
        async with node.health() as stream:
            assert {one.health for one in (await stream.read()).devices} == {1}, "what runs is well"
    async with node.running(**changes):
        await says("False", "DriverMismatch")
        assert specs(node) == before
        assert not await given_up(node, ended)
        faults.reload_driver(node.gpus, version=NEW)
        await says("True", "DriverAnswers")
        for claim in (late, late_part, looking):
            assert not await prepared(node, claim)

        def all_new() -> bool:
            return len(specs(node)) == 5 and all(f"libcuda.so.{NEW}" in spec for spec in specs(node))

        await eventually(all_new)


@pytest.mark.usefixtures("crds")
async def test_a_library_that_does_not_go_with_the_driver_ends_no_fault(node: SimulatedNode) -> None:
    """As if the agent was started in between and the packages were rolled back: the driver was never reloaded."""
    expected: dict[str, list[tuple[str, str, str]]] = {f"gpu-{index}": [] for index in range(4)}
    expected["gpu-1"] = [("draco.dev/xid", "Xid119", "NoSchedule")]
    claim = await node.claim("gpu-0")

    async def tainted() -> bool:
        return await taints(node) == expected

    async def says(status: str) -> bool:
        return (await readable(node))[0] == status

    async def prepared_by_now() -> bool:
        return not await prepared(node, claim)

    async with node.running(rescan_s=0.2):
        faults.xid(node.gpus, 1, 119)
        await eventually(tainted)
        faults.break_driver(node.gpus, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        await eventually(lambda: says("False"))
        assert "reload the driver or reboot the node" in (await readable(node))[2]
    async with node.running(rescan_s=0.2):
        assert "reload the driver or reboot the node" in await prepared(node, claim)
        with mutate(node.gpus) as gpus:
            gpus.driver.error = 0
        await eventually(lambda: says("True"))
        # A GPU that could not be read long enough to be tainted takes a few more readings.
        await eventually(prepared_by_now)
        await eventually(tainted)
