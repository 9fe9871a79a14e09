"""Feature discovery on real API servers with features on and off."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.discovery import discover
from draco.kube.errors import Unreachable
from draco.resources.kinds import SLICES, TAINT_RULES
from draco_local.cluster.controlplane import STORE, ControlPlane, Settings
from draco_local.cluster.programs import binaries
from tests.conftest import DIES_WITH_THE_TESTS
from tests.doubles.faultproxy import FaultProxy, answer


class BareControlPlane(ControlPlane):
    """An API server with every optional feature switched off."""

    def _apiserver_argv(self) -> list[str | Path]:
        off = "DRAPartitionableDevices=false,DRADeviceBindingConditions=false,DRADeviceTaints=false,DRADeviceTaintRules=false"
        served = "resource.k8s.io/v1beta2=false,resource.k8s.io/v1alpha3=false"
        return [*super()._apiserver_argv(), f"--feature-gates={off}", f"--runtime-config={served}"]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    settings = Settings(programs=binaries.find(*STORE), enter=DIES_WITH_THE_TESTS)
    plane = BareControlPlane(tmp_path_factory.mktemp("bare") / "state", settings)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


async def test_a_cluster_with_everything_lacks_nothing(client: Client) -> None:
    features = await discover(client)
    assert features.dra
    assert features.taint_rules is not None
    assert features.taint_rules.version == "v1beta2"
    assert features.partitionable_devices
    assert features.binding_conditions
    assert features.device_taints
    assert features.device_status
    assert features.missing == []


async def test_asking_leaves_nothing_behind(client: Client) -> None:
    before = await client.list(SLICES)
    await discover(client)
    assert await client.list(SLICES) == before


async def test_what_is_switched_off_is_missing_with_what_it_means_and_what_to_do(bare: ControlPlane) -> None:
    async with Client(await connect(bare.kubeconfig)) as client:
        features = await discover(client)
    assert features.dra
    assert features.taint_rules is None
    assert features.partitionable_devices is False
    assert features.binding_conditions is False
    assert features.device_taints is False
    assert features.device_status is True
    assert [missing.name for missing in features.missing] == [
        "DeviceTaintRule", "partitionable devices", "device taints", "binding conditions",
    ]  # fmt: skip
    for missing in features.missing:
        assert missing.consequence.endswith(".")
        assert missing.remedy.endswith(".")


async def test_who_may_not_create_slices_learns_what_is_served_and_calls_nothing_missing_that_may_be_there(
    client: Client, api_server: ControlPlane, tmp_path: Path
) -> None:
    api_server.write_kubeconfig(tmp_path / "kubeconfig", "reader")
    async with Client(await connect(tmp_path / "kubeconfig")) as reader:
        features = await discover(reader)
    assert features.dra
    assert features.taint_rules is not None
    assert features.partitionable_devices is None
    assert features.binding_conditions is None
    assert features.device_status is True
    assert features.missing == []


async def test_who_may_not_create_slices_does_not_try(
    client: Client, api_server: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_server.write_kubeconfig(tmp_path / "kubeconfig", "reader")
    tried: list[str] = []
    async with Client(await connect(tmp_path / "kubeconfig")) as reader:
        real = reader.connection.request

        async def noted(method: str, path: str, **rest: Any) -> bytes:
            tried.append(f"{method} {path}")
            return await real(method, path, **rest)

        monkeypatch.setattr(reader.connection, "request", noted)
        await discover(reader)
    assert [each for each in tried if each.startswith("POST")] == [
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    ]


async def test_a_cluster_that_wants_counters_beside_their_devices_has_no_partitions(
    through: Client, proxy: FaultProxy
) -> None:
    """As in Kubernetes 1.34 with the feature gate. A pool whose slices are refused has no devices at all."""
    asked: list[str] = []

    def is_second(request: Any) -> bool:
        if request.method == "POST" and "resourceslices" in str(request.path):
            asked.append(request.path)
        return len(asked) == 2

    said = "spec.devices[0].consumesCounters[0].counterSet: must reference a counterSet defined in the ResourceSlice"
    proxy.fault(is_second, answer(422, "Invalid", message=said))
    features = await discover(through)
    assert features.partitionable_devices is False
    assert features.device_taints is True
    assert [missing.name for missing in features.missing] == ["partitionable devices"]


@pytest.mark.parametrize("newest", range(len(TAINT_RULES)))
async def test_the_newest_taint_rule_that_is_served_is_used(through: Client, proxy: FaultProxy, newest: int) -> None:
    """The test answers for versions that this API server does not serve."""
    import aiohttp.web  # noqa: PLC0415 - only this test makes up an answer

    for number, kind in enumerate(TAINT_RULES):

        async def listed(_: object, served: bool = number >= newest) -> aiohttp.web.Response:
            resources = [{"name": "devicetaintrules"}] if served else []
            return aiohttp.web.json_response({"kind": "APIResourceList", "resources": resources})

        if kind.version != "v1":
            proxy.fault(lambda request, kind=kind: request.path == f"/apis/{kind.api_version}", listed)
        elif newest == 0:
            resources = {"resources": [{"name": "devicetaintrules"}, {"name": "resourceslices"}]}

            async def both(_: object, body: object = resources) -> aiohttp.web.Response:
                return aiohttp.web.json_response(body)

            proxy.fault(lambda request: request.path == "/apis/resource.k8s.io/v1", both, times=2)
    assert (await discover(through)).taint_rules == TAINT_RULES[newest]


async def test_a_cluster_without_dra_lacks_just_that(through: Client, proxy: FaultProxy) -> None:
    proxy.fault(lambda request: request.path == "/apis/resource.k8s.io/v1", answer(404, "NotFound"))
    features = await discover(through)
    assert not features.dra
    assert [missing.name for missing in features.missing] == ["Dynamic Resource Allocation"]


async def test_a_cluster_that_does_not_answer_is_not_taken_for_one_that_lacks_everything(
    through: Client, proxy: FaultProxy
) -> None:
    await proxy.refuse()
    with pytest.raises(Unreachable):
        await discover(through)
