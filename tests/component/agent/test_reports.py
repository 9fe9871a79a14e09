"""What the agent reports to people and the operator: GpuNode, claim status, endpoints. None of it delays kubelet."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import ANY

import aiohttp
import pytest
from structlog.testing import capture_logs

from draco.agent.claims.leftover_claims import CONFIRM_S, LeftoverClaims
from draco.agent.claims.work import ClaimWork
from draco.agent.hardware.monitor import HardwareView
from draco.agent.mig.holders import HoldingProcess
from draco.agent.plugin.registration import RegistrationState
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim, PreparedDevice
from draco.agent.report.node_status import NodeReport, NodeReporter
from draco.agent.state.facts import NodeFacts
from draco.agent.state.node import NodeState
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.errors import NotFound
from draco.options import MetricsSettings
from draco.resources.api.draco import GpuNode
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, GPU_NODES
from draco.resources.names import CONDITION_PARTITIONABLE, NVIDIA_DRIVER, ClaimUid, GpuUuid
from draco_local.cluster.controlplane import ControlPlane
from draco_local.simulator.accidents import faults
from tests.agents import SimulatedNode, eventually
from tests.doubles.clock import ManualClock
from tests.doubles.faultproxy import FaultProxy, answer
from tests.scraping import Scraper, accounts_in


async def gpu_node(node: SimulatedNode) -> GpuNode:
    return await node.client.get(GPU_NODES, ObjectKey("", node.name))


async def conditions(node: SimulatedNode) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.message) for one in (await gpu_node(node)).status.conditions}


async def condition(node: SimulatedNode, name: str, status: str) -> str:
    """The condition's message, or its status when it has none, once it has that status."""
    found, message = (await conditions(node)).get(name, ("", ""))
    return (message or found) if found == status else ""


@pytest.mark.usefixtures("crds")
async def test_conditions_say_what_is_missing(node: SimulatedNode) -> None:
    async with node.running():
        said = await eventually(lambda: condition(node, "Registered", "False"))
        assert f"Kubelet has not connected to {node.registration_socket} yet." in said
        assert f"kubelet's folder is not {node.folder}: name it with the chart's value agent.kubeletDir" in said
        await eventually(lambda: condition(node, "Published", "True"))
        await node.register(error="driver gpu.nvidia.com is taken")
        await eventually(lambda: refused(node))
        await node.register()
        await eventually(lambda: condition(node, "Ready", "True"))
        assert (await conditions(node))["Partitionable"] == ("True", "")
        faults.break_driver(node.gpus)
        assert "kernel module" in await eventually(lambda: condition(node, "Readable", "False"))
        assert "kernel module" in await eventually(lambda: condition(node, "Ready", "False"))


async def refused(node: SimulatedNode) -> bool:
    return "is taken" in await condition(node, "Registered", "False")


@pytest.mark.usefixtures("crds")
async def test_a_status_that_says_nothing_new_is_not_written(node: SimulatedNode, proxy: FaultProxy) -> None:
    async with node.running():
        await node.register()
        await eventually(lambda: condition(node, "Ready", "True"))
        before = await gpu_node(node)
    async with node.running_through(proxy, rescan_s=0.05):
        await node.register()
        await eventually(lambda: [one for one in gpu_node_requests(proxy) if one == "GET"])
        # The previous run reported Ready, too: this run has reported everything when nothing changes any more.
        await eventually(lambda: settled(node))
        writes = gpu_node_requests(proxy).count("PATCH")
        await asyncio.sleep(0.5)  # ten readings of the GPUs
        assert gpu_node_requests(proxy).count("PATCH") == writes
        after = await gpu_node(node)
    times = [{one.type: one.last_transition_time for one in each.status.conditions} for each in (before, after)]
    assert times[0]["Readable"] == times[1]["Readable"]


async def settled(node: SimulatedNode) -> bool:
    """The GpuNode, once it is Ready and unchanged for half a second."""
    before = await gpu_node(node)
    await asyncio.sleep(0.5)
    return bool(await condition(node, "Ready", "True")) and await gpu_node(node) == before


def gpu_node_requests(proxy: FaultProxy) -> list[str]:
    """Requests that read, write or create the object itself. Its spec is followed by watching the kind."""
    return [
        method for method, path, _ in proxy.seen if "/gpunodes/" in path or (method == "POST" and "/gpunodes" in path)
    ]


@pytest.mark.usefixtures("crds")
async def test_looking_again_at_a_right_status_writes_nothing(node: SimulatedNode, proxy: FaultProxy) -> None:
    said = NodeReport(
        driver="gpu.nvidia.com",
        facts=NodeFacts(view=HardwareView(), problem="No Node."),
        registration=RegistrationState(),
        claims=0,
    )
    async with Client(Connection(proxy.url)) as through:
        for _ in range(2):
            reporter = NodeReporter(through, node=node.name, node_report=lambda: said, clock=SystemClock())
            running = asyncio.create_task(reporter.run())
            count = len(gpu_node_requests(proxy))
            await eventually(lambda count=count: len(gpu_node_requests(proxy)) > count)
            await eventually(lambda: condition(node, "Ready", "False"))
            await asyncio.sleep(0.3)  # time for a write that must not happen
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert gpu_node_requests(proxy) == ["GET", "POST", "PATCH", "GET"]


async def test_without_the_kind_the_agent_works_and_says_so_once(node: SimulatedNode, proxy: FaultProxy) -> None:
    await remove_kind(node)
    claim = await node.claim("gpu-0")
    with capture_logs() as logs:
        async with node.running_through(proxy):
            await node.published(2)
            assert not (await node.prepare(claim))[claim.metadata.uid].error
            await eventually(lambda: gpu_node_requests(proxy).count("POST"))
            tried = gpu_node_requests(proxy).count("POST")
            faults.lose(node.gpus, 1)
            await eventually(lambda: lost_seen(node))
            await eventually(lambda: gpu_node_requests(proxy).count("POST") > tried)
    assert [one["event"] for one in logs].count("kind.missing") == 1
    assert not [one for one in logs if one["event"] in ("reconcile.failed", "informer.interrupted")]


async def lost_seen(node: SimulatedNode) -> bool:
    async with node.health() as stream:
        return any(one.health == 2 for one in (await stream.read()).devices)


async def remove_kind(node: SimulatedNode) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpunodes.draco.dev"

    async def gone() -> bool:
        try:
            await node.client.connection.request("GET", "/apis/draco.dev/v1alpha1/gpunodes")
        except NotFound:
            return True
        return False

    with suppress(NotFound):
        await node.client.connection.request("DELETE", path)
    await eventually(gone)


async def test_a_claim_is_prepared_while_its_status_cannot_be_written_and_that_is_made_up_for(
    node: SimulatedNode, proxy: FaultProxy
) -> None:
    claim = await node.claim("gpu-0")
    proxy.fault(lambda request: request.path.endswith("/status"), answer(500), times=3)
    async with node.running_through(proxy):
        assert not (await node.prepare(claim))[claim.metadata.uid].error

        async def reported() -> object:
            return (await node.client.get(CLAIMS, claim.metadata.key)).status.devices

        await eventually(reported)


async def test_a_claim_whose_release_was_never_reported_is_reported_when_kubelet_asks_again(
    node: SimulatedNode, proxy: FaultProxy
) -> None:
    claim = await node.claim("gpu-0")

    async def reported() -> bool:
        return bool((await node.client.get(CLAIMS, claim.metadata.key)).status.devices)

    async with node.running():
        await node.prepare(claim)
        await eventually(reported)
    proxy.fault(lambda request: claim.metadata.name in request.path, answer(503), times=1000)
    async with node.running_through(proxy):
        await node.unprepare(claim)
    assert await reported(), "the agent has ended before it could tell"

    async def corrected() -> bool:
        return not await reported()

    async with node.running():
        await node.unprepare(claim)
        await eventually(corrected)


async def test_a_restart_does_not_move_the_times_of_a_claims_conditions(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")

    async def device() -> object:
        devices = (await node.client.get(CLAIMS, claim.metadata.key)).status.devices
        return devices[0] if devices else None

    async with node.running():
        await node.prepare(claim)
        before = await eventually(device)
    async with node.running():
        faults.lose(node.gpus, 0)

        async def unhealthy() -> object:
            found = await device()
            return found if "False" in [one.status for one in found.conditions] else None  # type: ignore[attr-defined]

        after = await eventually(unhealthy)
    times = [{one.type: one.last_transition_time for one in each.conditions} for each in (before, after)]
    assert times[0]["Ready"] == times[1]["Ready"]


async def test_while_the_driver_is_not_loaded_a_claims_gpu_is_unknown_and_not_gone(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")

    async def health(status: str) -> str:
        devices = (await node.client.get(CLAIMS, claim.metadata.key)).status.devices
        said = {one.type: one for device in devices for one in device.conditions}.get("Healthy")
        return (said.message or status) if said is not None and said.status == status else ""

    async with node.running():
        await node.prepare(claim)
        await eventually(lambda: health("True"))
    faults.break_driver(node.gpus)
    async with node.running():
        assert "kernel module" in await eventually(lambda: health("Unknown"))


async def test_endpoints_tell_liveness_readiness_and_metrics(node: SimulatedNode, unused_tcp_port: int) -> None:
    claim = await node.claim("gpu-0")
    base = f"http://127.0.0.1:{unused_tcp_port}"
    async with node.running(listen=("127.0.0.1", unused_tcp_port)), aiohttp.ClientSession(trust_env=False) as session:

        async def ready() -> bool:
            async with session.get(f"{base}/readyz") as response:
                return response.status == 200

        await eventually(ready)
        await node.register()
        await node.prepare(claim)
        async with session.get(f"{base}/livez") as response:
            assert response.status == 200
        async with session.get(f"{base}/metrics") as response:
            text = await response.text()
    for line in (
        'draco_agent_gpus{health="Healthy"} 2.0',
        "draco_agent_prepared_claims 1.0",
        'draco_agent_prepares_total{result="ok"} 1.0',
        "draco_agent_pool_generation 1.0",
        "draco_agent_registered 1.0",
    ):
        assert line in text


@pytest.mark.usefixtures("crds")
async def test_where_metrics_are_secure_they_are_for_those_who_may_read_them_and_probes_stay_plain(
    node: SimulatedNode,
    api_server: ControlPlane,
    namespace: str,
    tmp_path: Path,
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    plain, scraper, tokens = unused_tcp_port_factory(), Scraper(tmp_path), accounts_in(api_server, namespace)
    scraper.port = unused_tcp_port_factory()
    settings = {"metrics": MetricsSettings(host="127.0.0.1", port=scraper.port, certificates=tmp_path)}
    async with node.running(listen=("127.0.0.1", plain), **settings), aiohttp.ClientSession(trust_env=False) as session:
        assert await scraper.scrape(tokens["prometheus"]) == (0, ANY), "an agent without a certificate serves kubelet"
        scraper.show(scraper.authority)

        async def scraped() -> str:
            code, text = await scraper.scrape(tokens["prometheus"])
            return text if code == 200 else ""

        assert 'draco_agent_gpus{health="Healthy"} 2.0' in await eventually(scraped)

        async def told() -> tuple[str, str]:
            conditions = (await node.client.get(GPU_NODES, ObjectKey("", node.name))).status.conditions
            told = [(one.status, one.message) for one in conditions if one.type == "CertificateFit"]
            return told[0] if told else ("", "")

        async def fit() -> bool:
            return (await told()) == ("True", "")

        async def unfit() -> str:
            status, sentence = await told()
            return sentence if status == "False" else ""

        await eventually(fit)
        (tmp_path / "tls.key").unlink()
        sentence = await eventually(unfit)
        assert sentence.startswith(
            f"The certificate of the endpoint for metrics is unfit: cannot use {tmp_path}/tls.crt"
        )
        assert sentence.endswith("put a certificate and its private key there, both in PEM.")
        assert (await scraper.scrape(tokens["tenant"]))[0] == 403
        for path, code in (("livez", 200), ("metrics", 404)):
            async with session.get(f"http://127.0.0.1:{plain}/{path}") as response:
                assert response.status == code


@pytest.fixture
def unused_tcp_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# Claims that kubelet never unprepares


class Looking:
    """A search for leftovers with the test's clock."""

    def __init__(self, node: SimulatedNode, claim: PreparedClaim, *, client: Client | None = None) -> None:
        self.clock = ManualClock()
        self.given_up: list[str] = []
        self.running: list[HoldingProcess] | None = []
        self.told: list[str] = []
        self.claims = {claim.uid: claim}
        self.state = NodeState(ManualClock())
        self.leftovers = LeftoverClaims(
            client or node.client,
            self.state,
            cast("Checkpoint", SimpleNamespace(claims=self.claims)),
            cast("ClaimWork", SimpleNamespace(running=self._running, unprepare=self._unprepare)),
            driver=NVIDIA_DRIVER,
            tell=lambda reason, _action, note: self.told.append(f"{reason}: {note}"),
            clock=self.clock,
        )

    async def _running(self, _claim: PreparedClaim) -> list[HoldingProcess] | None:
        return self.running

    async def _unprepare(self, uid: ClaimUid) -> None:
        self.given_up.append(self.claims[uid].name)

    async def look_after(self, seconds: float) -> list[str]:
        await self.leftovers.look(self.claims)
        await self.clock.advance(seconds)
        await self.leftovers.look(self.claims)
        return self.given_up


def on_record(name: str, uid: str, namespace: str, *, pool: str = "node-0") -> PreparedClaim:
    device = PreparedDevice(request="gpu", pool=pool, device="gpu-0", gpu=GpuUuid("GPU-0"), minor=0)
    return PreparedClaim(
        uid=ClaimUid(uid), namespace=namespace, name=name, state=PreparationState.PREPARED, devices=[device]
    )


async def test_a_claim_that_has_its_devices_is_never_given_up(node: SimulatedNode) -> None:
    claim = await node.claim("gpu-0")
    looking = Looking(node, on_record(claim.metadata.name, claim.metadata.uid, node.namespace, pool=node.name))
    assert await looking.look_after(3600) == []
    assert (looking.state.facts.leftovers, looking.told) == ({}, [])


@pytest.mark.parametrize("devices", [(), ("gpu-1",)], ids=["none", "another"])
async def test_a_claim_that_was_deallocated_is_given_up_when_no_process_of_it_runs(
    node: SimulatedNode, devices: tuple[str, ...]
) -> None:
    claim = await node.claim(*devices)
    looking = Looking(node, on_record(claim.metadata.name, claim.metadata.uid, node.namespace, pool=node.name))
    looking.running = [HoldingProcess(pid=4711, command="train")]
    with capture_logs() as logs:
        assert await looking.look_after(3600) == []
        assert await looking.look_after(3600) == []
    assert [(one["event"], one["why"]) for one in logs] == [("claim.left_behind", "deallocated")]
    [note] = looking.told
    assert note.endswith("is deallocated; it stays prepared while its devices are in use by process 4711 (train).")
    looking.running = []
    assert await looking.look_after(0) == [claim.metadata.name] * 2, "tried until it is off the record"


async def test_a_claim_that_is_gone_is_given_up_at_the_second_look_while_somebody_can_say_that_nobody_uses_it(
    node: SimulatedNode,
) -> None:
    looking = Looking(node, on_record("gone", "uid-1", node.namespace))
    assert await looking.look_after(CONFIRM_S - 1) == [], "one look may be mistaken"
    looking.running = None
    assert await looking.look_after(CONFIRM_S) == []
    [left] = looking.state.facts.leftovers.values()
    assert str(left) == (
        f"Claim {node.namespace}/gone is gone; it stays prepared while NVML does not answer, so the users of its devices are "
        "unknown."
    )
    looking.running = []
    await looking.leftovers.look(looking.claims)
    assert looking.given_up == ["gone"]
    looking.claims.clear()
    await looking.leftovers.look(looking.claims)
    assert looking.state.facts.leftovers == {}


async def test_an_api_server_that_fails_in_between_makes_the_first_look_count_for_nothing(
    node: SimulatedNode, proxy: FaultProxy
) -> None:
    async with Client(Connection(proxy.url)) as through:
        looking = Looking(node, on_record("gone", "uid-1", node.namespace), client=through)
        await looking.look_after(0)
        proxy.fault(lambda request: "/resourceclaims/" in request.path, answer(500), times=100)
        assert await looking.look_after(CONFIRM_S) == []
        proxy.heal()
        await looking.leftovers.look(looking.claims)
        assert looking.given_up == []
        assert await looking.look_after(CONFIRM_S) == ["gone"]


async def test_a_claim_whose_name_was_taken_by_another_counts_as_gone(node: SimulatedNode) -> None:
    await node.claim("gpu-0", name="reused")
    looking = Looking(node, on_record("reused", "the old uid", node.namespace))
    assert await looking.look_after(CONFIRM_S) == ["reused"]


@pytest.mark.usefixtures("crds")
async def test_a_gate_that_comes_is_noticed_while_kubelet_is_served(node: SimulatedNode, proxy: FaultProxy) -> None:
    """At first the API server stores no counters: every second probe, the one with counters, is refused."""
    asked: list[str] = []

    def with_counters(request: Any) -> bool:
        if request.method == "POST" and "dryRun" in request.query:
            asked.append(request.path)
            return len(asked) % 2 == 0
        return False

    proxy.fault(with_counters, answer(422, "Invalid"), times=10**9)
    with capture_logs() as logs:
        async with node.running_through(proxy, rediscover_s=0.4, confirm_s=0.1):
            await node.published(2)
            await eventually(lambda: condition(node, CONDITION_PARTITIONABLE, "False"))
            proxy.heal()
            await eventually(lambda: condition(node, CONDITION_PARTITIONABLE, "True"))
            claim = await node.claim("gpu-0")
            assert not (await node.prepare(claim))[claim.metadata.uid].error
    events = [one["event"] for one in logs]
    assert events.count("cluster.changed") == 1
    assert events.count("plugin.registered") <= 1
