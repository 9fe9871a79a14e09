"""What the stand-in for kubelet does to pods and to a DRA driver, on a real API server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import EVENTS, LEASES, NODES, PODS, SLICES, Kind
from draco_local.simulator.kubelet.node_object import NodeObject, NodeShape
from draco_local.simulator.kubelet.pods import PodBlocked
from draco_local.simulator.kubelet.standin import Kubelet, KubeletSettings
from tests.component.simulator.conftest import DRIVER, HoursLater, Workload, running_kubelet
from tests.doubles.draplugin import RecordingPlugin

NOOP = frozenset({DRIVER})
RAW_PODS: Kind[Any] = Kind("", "v1", "pods", "Pod", True, dict)


async def until(true: Callable[[], Awaitable[bool]], *, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not await true():  # noqa: ASYNC110 - what changes is on a server
            await asyncio.sleep(0.02)


async def phase_is(workload: Workload, name: str, phase: str) -> bool:
    return (await workload.client.get(PODS, workload.key(name))).status.phase == phase


async def gone(client: Client, kind: Kind[Any], key: ObjectKey) -> bool:
    try:
        await client.get(kind, key)
    except NotFound:
        return True
    return False


def waiting_reason(pod: dict[str, Any]) -> str:
    conditions = pod.get("status", {}).get("conditions", [])
    return next((c["message"] for c in conditions if c["type"] == "PodReadyToStartContainers" and "message" in c), "")


async def says(workload: Workload, name: str, words: str) -> bool:
    return words in waiting_reason(await workload.client.get(RAW_PODS, workload.key(name)))


@pytest.fixture
async def kubelet(client: Client, root: Path, node_name: str) -> AsyncIterator[Kubelet]:
    async with running_kubelet(client, root, node_name) as kubelet:
        yield kubelet


@pytest.fixture
async def plugin(root: Path) -> AsyncIterator[RecordingPlugin]:
    async with RecordingPlugin(DRIVER).serving(root) as plugin:
        yield plugin


async def test_a_pod_runs_once_its_claim_is_prepared(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    await workload.claim("one")
    await workload.pod("pod", "one")
    await until(partial(phase_is, workload, "pod", "Running"))
    assert plugin.calls == [("prepare", "one")]
    status = (await workload.client.get(RAW_PODS, workload.key("pod")))["status"]
    assert {c["type"] for c in status["conditions"] if c["status"] == "True"} >= {"Ready", "ContainersReady"}
    assert [(c["name"], c["ready"]) for c in status["containerStatuses"]] == [("main", True)]
    assert status["podIP"]
    assert status["hostIP"]
    assert status["startTime"]


async def test_a_pod_without_claims_runs(kubelet: Kubelet, workload: Workload) -> None:
    await workload.pod("pod")
    await until(partial(phase_is, workload, "pod", "Running"))


async def test_a_pod_waits_until_its_claim_is_reserved_for_it(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    await workload.claim("one")
    pod = await workload.pod("pod", "one", reserve=False)
    await until(partial(says, workload, "pod", "is not reserved for pod"))
    assert plugin.calls == []
    await workload.reserve(pod, ["one"])
    await until(partial(phase_is, workload, "pod", "Running"))


async def test_a_reservation_for_another_pod_of_the_same_name_does_not_count(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    await workload.claim("one")
    former = await workload.pod("pod", "one")
    await until(partial(phase_is, workload, "pod", "Running"))
    await workload.delete("pod", grace_period_s=0)
    await until(partial(gone, workload.client, PODS, workload.key("pod")))
    await workload.pod("pod", "one", reserve=False)
    await until(partial(says, workload, "pod", "is not reserved for pod"))
    assert former.metadata.uid
    assert plugin.calls == [("prepare", "one"), ("unprepare", "one")]


async def test_what_a_driver_says_is_told_and_tried_again(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    plugin.errors["one"] = "GPU has fallen off the bus"
    await workload.claim("one")
    await workload.pod("pod", "one")
    await until(partial(says, workload, "pod", "GPU has fallen off the bus"))

    async def event() -> bool:
        events = await workload.client.list(EVENTS, namespace=workload.namespace)
        return any("GPU has fallen off the bus" in item.message for item in events)

    await until(event)
    plugin.errors.clear()
    await until(partial(phase_is, workload, "pod", "Running"))


async def test_a_claim_the_driver_leaves_out_of_its_answer_is_not_prepared(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    plugin.silent_about.add("one")
    await workload.claim("one")
    await workload.pod("pod", "one")
    await until(partial(says, workload, "pod", "did not answer for this claim"))
    assert await phase_is(workload, "pod", "Pending")


async def test_a_pod_waits_for_a_driver_that_is_not_there_and_runs_when_it_comes(
    kubelet: Kubelet, root: Path, workload: Workload
) -> None:
    await workload.claim("one")
    await workload.pod("pod", "one")
    await until(partial(says, workload, "pod", f"DRA driver {DRIVER} is not registered"))
    async with RecordingPlugin(DRIVER).serving(root):
        await until(partial(phase_is, workload, "pod", "Running"))


async def test_the_devices_of_a_noop_driver_need_no_plugin(client: Client, root: Path, workload: Workload) -> None:
    async with running_kubelet(client, root, workload.node_name, noop_drivers=frozenset({DRIVER})):
        await workload.claim("one")
        await workload.pod("pod", "one")
        await until(partial(phase_is, workload, "pod", "Running"))


async def test_a_claim_from_a_template_must_be_the_pods_own(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    pod = await workload.pod_with_template("pod", "gpu")
    await until(partial(says, workload, "pod", "has not been made yet"))
    await workload.claim("strangers")
    await workload.claim("made", owner=pod)
    await workload.reserve(pod, ["strangers", "made"])
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "strangers"}]}
    await workload.client.patch(PODS, workload.key("pod"), {"status": status}, subresource="status")
    await until(partial(says, workload, "pod", "was not made for pod"))
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]}
    await workload.client.patch(PODS, workload.key("pod"), {"status": status}, subresource="status")
    await until(partial(phase_is, workload, "pod", "Running"))
    assert plugin.calls == [("prepare", "made")]


async def test_the_claim_for_an_extended_resource_is_prepared(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    resources = {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}
    pod = await workload.create("pod", {"containers": [{"name": "main", "image": "none", "resources": resources}]})
    await workload.claim("extended", owner=pod)
    await workload.reserve(pod, ["extended"])
    mapping = {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "gpu"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "extended", "requestMappings": [mapping]}}
    await workload.client.patch(PODS, workload.key("pod"), {"status": status}, subresource="status")
    await workload.bind("pod")
    await until(partial(phase_is, workload, "pod", "Running"))
    assert plugin.calls == [("prepare", "extended")]


async def test_a_shared_claim_is_given_up_with_its_last_pod(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    await workload.claim("shared")
    for name in ("first", "second"):
        await workload.pod(name, "shared")
        await until(partial(phase_is, workload, name, "Running"))
    await workload.delete("first")
    await until(partial(gone, workload.client, PODS, workload.key("first")))
    assert ("unprepare", "shared") not in plugin.calls
    await workload.delete("second")
    await until(partial(gone, workload.client, PODS, workload.key("second")))
    assert plugin.calls[-1] == ("unprepare", "shared")


async def test_a_pod_stays_until_its_driver_has_given_up_the_claim(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    await workload.claim("one")
    await workload.pod("pod", "one")
    await until(partial(phase_is, workload, "pod", "Running"))
    plugin.errors["one"] = "still in use by pid 4711"
    await workload.delete("pod")

    async def refused() -> bool:
        return plugin.calls.count(("unprepare", "one")) >= 2

    await until(refused)
    assert not await gone(workload.client, PODS, workload.key("pod"))
    plugin.errors.clear()
    await until(partial(gone, workload.client, PODS, workload.key("pod")))


async def test_a_pod_runs_out_its_time_to_stop(
    client: Client, root: Path, plugin: RecordingPlugin, workload: Workload
) -> None:
    async with running_kubelet(client, root, workload.node_name, termination_s=1.0):
        await workload.claim("one")
        await workload.pod("pod", "one")
        await until(partial(phase_is, workload, "pod", "Running"))
        began = asyncio.get_running_loop().time()
        await workload.delete("pod")
        await until(partial(gone, client, PODS, workload.key("pod")))
        # Deletion times have whole seconds, so up to one second of grace can be lost.
        assert asyncio.get_running_loop().time() - began < 5
        assert plugin.calls == [("prepare", "one"), ("unprepare", "one")]


async def test_a_pod_that_wants_to_end_succeeds_and_gives_its_claim_up(
    kubelet: Kubelet, plugin: RecordingPlugin, workload: Workload
) -> None:
    await workload.claim("one")
    await workload.pod("pod", "one", annotations={"draco.dev/run-seconds": "0.3"})
    await until(partial(phase_is, workload, "pod", "Succeeded"))

    async def given_up() -> bool:
        return plugin.calls == [("prepare", "one"), ("unprepare", "one")]

    await until(given_up)


async def test_a_restarted_stand_in_keeps_its_pods_and_notices_what_went_meanwhile(
    client: Client,
    root: Path,
    plugin: RecordingPlugin,
    workload: Workload,
) -> None:
    async with running_kubelet(client, root, workload.node_name):
        for name in ("stays", "goes"):
            await workload.claim(f"claim-{name}")
            await workload.pod(name, f"claim-{name}")
            await until(partial(phase_is, workload, name, "Running"))
    before = await client.get(RAW_PODS, workload.key("stays"))
    await workload.delete("goes", grace_period_s=0)
    plugin.calls.clear()
    async with running_kubelet(client, root, workload.node_name, clock=HoursLater()):

        async def caught_up() -> bool:
            return {("prepare", "claim-stays"), ("unprepare", "claim-goes")} <= set(plugin.calls)

        await until(caught_up)
        await workload.pod("new")
        await until(partial(phase_is, workload, "new", "Running"))
        after = await client.get(RAW_PODS, workload.key("stays"))
    assert after["status"] == before["status"]
    assert set(plugin.calls) == {("prepare", "claim-stays"), ("unprepare", "claim-goes")}


async def restarted_later(client: Client, root: Path, workload: Workload) -> None:
    """Restart the stand-in hours later: it starts a new pod, and the status of the one that runs stays as it is."""
    before = await client.get(RAW_PODS, workload.key("pod"))
    async with running_kubelet(client, root, workload.node_name, noop_drivers=NOOP, clock=HoursLater()):
        await workload.pod("new")
        await until(partial(phase_is, workload, "new", "Running"))
        assert (await client.get(RAW_PODS, workload.key("pod")))["status"] == before["status"]


async def test_a_stand_in_killed_before_it_heard_back_keeps_the_start_it_reported(
    client: Client, root: Path, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def apply_unheard(kind: Kind[Any], key: ObjectKey, manifest: dict[str, Any], **settings: Any) -> Any:
        answer = await apply(kind, key, manifest, **settings)
        if manifest.get("status", {}).get("phase") == "Running":
            await asyncio.Event().wait()
        return answer

    apply = client.apply
    with monkeypatch.context() as patch:
        patch.setattr(client, "apply", apply_unheard)
        async with running_kubelet(client, root, workload.node_name, noop_drivers=NOOP):
            await workload.claim("one")
            await workload.pod("pod", "one")
            await until(partial(phase_is, workload, "pod", "Running"))
    await restarted_later(client, root, workload)


async def test_a_restarted_stand_in_takes_no_pod_for_gone_before_it_has_seen_them_all(
    client: Client, root: Path, workload: Workload
) -> None:
    async with running_kubelet(client, root, workload.node_name, noop_drivers=NOOP):
        await workload.claim("one")
        await workload.pod("pod", "one")
        await until(partial(phase_is, workload, "pod", "Running"))
    await restarted_later(client, root, workload)


async def test_a_pod_that_waits_for_a_driver_is_looked_at_as_soon_as_it_registers(
    client: Client, root: Path, workload: Workload
) -> None:
    clock, woken = SystemClock(), asyncio.Queue[ObjectKey]()
    kubelet = Kubelet(
        KubeletSettings(node_name=workload.node_name, root=root),
        client,
        node=NodeObject(workload.node_name, client, shape=NodeShape(), clock=clock),
        clock=clock,
        wake=woken.put_nowait,
        complain=lambda pod, reason, sentence: None,
    )
    running = asyncio.create_task(kubelet.run())
    try:
        await workload.claim("one")
        pod = await workload.pod("pod", "one")
        with pytest.raises(PodBlocked, match="is not registered"):
            await kubelet.sync(workload.key("pod"), pod)
        async with RecordingPlugin(DRIVER).serving(root):
            assert await asyncio.wait_for(woken.get(), 60) == workload.key("pod")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_damaged_memory_is_set_aside(
    client: Client, root: Path, plugin: RecordingPlugin, workload: Workload
) -> None:
    (root / "dra_manager_state").write_text('[{"uid": "half')
    async with running_kubelet(client, root, workload.node_name):
        await workload.claim("one")
        await workload.pod("pod", "one")
        await until(partial(phase_is, workload, "pod", "Running"))
    assert (root / "dra_manager_state.corrupt").read_text() == '[{"uid": "half'


async def test_a_plugin_that_restarts_is_registered_again(kubelet: Kubelet, root: Path, workload: Workload) -> None:
    plugin = RecordingPlugin(DRIVER)
    for name in ("first", "second"):
        async with plugin.serving(root):
            await asyncio.wait_for(plugin.registered.wait(), 60)
            await workload.claim(f"claim-{name}")
            await workload.pod(name, f"claim-{name}")
            await until(partial(phase_is, workload, name, "Running"))


async def test_a_plugin_of_a_foreign_type_is_told_why_it_is_refused(kubelet: Kubelet, root: Path) -> None:
    plugin = RecordingPlugin(DRIVER)
    plugin.info.type = "CSIPlugin"
    async with plugin.serving(root):

        async def refused() -> bool:
            return "CSIPlugin" in plugin.refused

        await until(refused)
        assert not plugin.registered.is_set()


def a_slice_of(node: str, driver: str) -> dict[str, Any]:
    spec = {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": {**spec, "devices": [{"name": "gpu-0"}]}}


async def test_slices_of_the_node_are_removed_at_start_and_others_left_alone(
    client: Client, root: Path, node_name: str
) -> None:
    for node in (node_name, f"{node_name}-other"):
        await client.create(SLICES, a_slice_of(node, DRIVER))
    async with running_kubelet(client, root, node_name):
        left = {item.metadata.name for item in await client.list(SLICES)}
    assert f"{node_name}-{DRIVER}" not in left
    assert f"{node_name}-other-{DRIVER}" in left


async def test_the_slices_of_a_driver_that_went_away_are_removed_after_a_while(
    client: Client, root: Path, node_name: str
) -> None:
    async with running_kubelet(client, root, node_name, wipe_after_s=0.5):
        plugin = RecordingPlugin(DRIVER)
        async with plugin.serving(root):
            await asyncio.wait_for(plugin.registered.wait(), 60)
            for driver in (DRIVER, "other.example.com"):
                await client.create(SLICES, a_slice_of(node_name, driver))
            await asyncio.sleep(1.2)  # longer than wipe_after_s: a registered driver keeps its slices
            assert not await gone(client, SLICES, ObjectKey("", f"{node_name}-{DRIVER}"))
        await until(partial(gone, client, SLICES, ObjectKey("", f"{node_name}-{DRIVER}")))
        assert not await gone(client, SLICES, ObjectKey("", f"{node_name}-other.example.com"))


async def test_the_node_is_ready_and_its_lease_is_renewed(client: Client, root: Path, node_name: str) -> None:
    lease = ObjectKey("kube-node-lease", node_name)
    async with running_kubelet(client, root, node_name, renew_s=0.1):
        node = await client.get(NODES, ObjectKey("", node_name))
        assert node.ready
        assert node.metadata.labels["kubernetes.io/hostname"] == node_name
        first = (await client.get(LEASES, lease)).spec.renew_time

        async def renewed() -> bool:
            return (await client.get(LEASES, lease)).spec.renew_time != first

        await until(renewed)


async def test_a_deleted_node_comes_back(client: Client, root: Path, node_name: str) -> None:
    async with running_kubelet(client, root, node_name, renew_s=0.1):
        await client.delete(NODES, ObjectKey("", node_name))
        await client.delete(LEASES, ObjectKey("kube-node-lease", node_name))

        async def ready() -> bool:
            return not await gone(client, NODES, ObjectKey("", node_name))

        await until(ready)
