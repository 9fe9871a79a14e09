"""The whole agent against a real API server; the test plays kubelet's side of the sockets."""

import json
import stat

import pytest

from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES, SLICES
from tests.agents import SimulatedNode, eventually


async def test_gpus_are_published_under_nvidias_names(node: SimulatedNode) -> None:
    async with node.running():
        [published] = await node.published(2)
    assert published.spec.pool.name == node.name
    assert published.spec.pool.generation == 1
    assert [owner.kind for owner in published.metadata.owner_references] == ["Node"]
    first = published.spec.devices[0]
    assert first.name == "gpu-0"
    values = {name: attribute.value for name, attribute in first.attributes.items()}
    assert values["type"] == "gpu"
    assert values["productName"] == "NVIDIA H100 80GB HBM3"
    assert values["driverVersion"] == "580.95.5"
    assert str(values["resource.kubernetes.io/pcieRoot"]).startswith("pci0000:")
    assert first.capacity["memory"].value.endswith("Mi")


async def test_kubelet_learns_the_services_and_both_sockets_are_private(node: SimulatedNode) -> None:
    async with node.running():
        info = await node.register()
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpu.nvidia.com", str(node.service_socket))
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        for socket in (node.registration_socket, node.service_socket):
            assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert not node.registration_socket.exists()
    assert not node.service_socket.exists()


async def test_a_claim_is_prepared_and_given_up(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0", "gpu-1")
    async with node.running():
        answer = (await node.prepare(claim))[claim.metadata.uid]
        assert answer.error == ""
        assert [(one.pool_name, one.device_name, list(one.request_names)) for one in answer.devices] == [
            (node.name, "gpu-0", ["gpu"]),
            (node.name, "gpu-1", ["gpu"]),
        ]
        [spec_name] = node.specs()
        spec = json.loads((node.cdi / spec_name).read_text())
        known = {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
        assert {name for one in answer.devices for name in one.cdi_device_ids} == known
        assert (await node.unprepare(claim))[claim.metadata.uid].error == ""
        assert node.specs() == []


@pytest.mark.usefixtures("crds")
async def test_the_gpunode_reports_gpus_and_conditions(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        await node.register()
        await node.prepare(claim)

        async def complete() -> object:
            found = await node.client.get(GPU_NODES, ObjectKey("", node.name))
            ready = {condition.type: condition.status for condition in found.status.conditions}
            return found if ready.get("Ready") == "True" and found.status.prepared_claims == 1 else None

        found = await eventually(complete)
        assert [gpu.device for gpu in found.status.gpus] == ["gpu-0", "gpu-1"]
        assert {gpu.health for gpu in found.status.gpus} == {"Healthy"}
        assert found.status.pool_generation == 1
        assert [owner.name for owner in found.metadata.owner_references] == [node.name]


async def test_slices_that_kubelet_wiped_come_back(node: SimulatedNode) -> None:
    async with node.running():
        [before] = await node.published(2)
        await node.client.delete(SLICES, before.metadata.key)

        async def back() -> bool:
            return [one.metadata.uid for one in await node.slices()] not in ([], [before.metadata.uid])

        await eventually(back)
        [after] = await node.slices()
    assert after.spec == before.spec


async def test_the_claim_says_that_its_devices_are_ready_and_healthy(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        await node.prepare(claim)

        async def reported() -> object:
            return (await node.client.get(CLAIMS, claim.metadata.key)).status.devices

        [device] = await eventually(reported)
        assert {one.type: one.status for one in device.conditions} == {"Ready": "True", "Healthy": "True"}
        assert all(one.last_transition_time for one in device.conditions)
        assert device.data.keys() == {"version", "uuid", "pciBusID"}
        assert device.data["uuid"].startswith("GPU-")
        await node.unprepare(claim)

        async def cleared() -> bool:
            return not (await node.client.get(CLAIMS, claim.metadata.key)).status.devices

        await eventually(cleared)
