"""Two operators as processes: who leads, what happens when the leader dies, and how one stops."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import LEASES
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import Process, until
from tests.scraping import Scraper, accounts_in

pytestmark = pytest.mark.usefixtures("crds")

LEASE_S = 8
LONG_LEASE_S = 300
"""So long that no replica waits for its expiry."""
KILLED_AFTER_S = 30
"""When kubelet kills a container that was told to stop."""


class Lease:
    """Options of replicas that compete for one lease, in a namespace of the test."""

    def __init__(self, namespace: str, duration_s: int = LEASE_S) -> None:
        self.key = ObjectKey(namespace, "draco-operator")
        self.options = (
            *("--namespace", namespace, "--lease-duration", str(duration_s)),
            *("--renew-deadline", str(0.75 * duration_s), "--retry-period", "0.3", "--settle", "0.1"),
        )


@pytest.fixture
def lease(namespace: str) -> Lease:
    return Lease(namespace)


@asynccontextmanager
async def a_replica(served: ControlPlane, folder: Path, lease: Lease) -> AsyncIterator[Process]:
    replica = await Process.start(served, folder, *lease.options)
    try:
        yield replica
    finally:
        await replica.kill()


async def is_ready(replica: Process) -> bool:
    return (await replica.get("/readyz"))[0] == 200


async def test_one_of_two_leads_and_a_killed_leader_is_replaced(
    served: ControlPlane, lease: Lease, tmp_path: Path
) -> None:
    async with a_replica(served, tmp_path, lease) as one, a_replica(served, tmp_path, lease) as other:

        async def leaders() -> list[Process]:
            return [replica for replica in (one, other) if await replica.leads()]

        await until(lambda: is_ready(one), what="readiness")
        await until(lambda: is_ready(other), what="readiness of the standby")
        (leader,) = await until(leaders, what="leadership")
        standby = other if leader is one else one
        for _ in range(10):
            assert await leaders() == [leader]
            await asyncio.sleep(0.1)
        await leader.end(signal.SIGKILL)
        await until(standby.leads, what="the succession")


async def test_a_leader_that_is_told_to_stop_ends_and_hands_over_at_once(
    served: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    lease = Lease(namespace, LONG_LEASE_S)
    async with a_replica(served, tmp_path, lease) as one:
        await until(one.leads, what="leadership")
        async with a_replica(served, tmp_path, lease) as other:
            await until(lambda: is_ready(other), what="readiness of the standby")
            assert await one.end(signal.SIGTERM, within_s=KILLED_AFTER_S) == 0
            await until(other.leads, what="the handing over")
        assert "Traceback" not in one.output


async def test_a_leader_whose_lease_is_taken_ends_with_an_error_and_one_line_that_says_why(
    served: ControlPlane, client: Client, lease: Lease, tmp_path: Path
) -> None:
    async with a_replica(served, tmp_path, lease) as replica:
        await until(replica.leads, what="leadership")

        # Another replica has it, as a leader finds that was suspended for longer than its lease.
        await client.patch(LEASES, lease.key, {"spec": {"holderIdentity": "someone-else"}})
        assert await replica.wait(within_s=60) == 1
        (said,) = [event for event in replica.events() if event["event"] == "operator.leadership_lost"]
        assert "someone-else" in said["error"]
        assert "Traceback" not in replica.output


async def test_an_operator_without_an_api_server_says_so_in_one_sentence(tmp_path: Path, served: ControlPlane) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(served.kubeconfig.read_text().replace(f":{served.port}", ":1"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "draco", "operator", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().startswith("Error: Cannot reach the API server at https://127.0.0.1:1")
    assert len(errors.decode().splitlines()) == 1


async def test_a_cluster_without_dra_is_said_in_one_sentence_with_what_to_do(tmp_path: Path) -> None:
    async def nothing_here(_: web.BaseRequest) -> web.Response:
        return web.Response(status=404, text="404 page not found")

    kubeconfig = tmp_path / "kubeconfig"
    async with RawTestServer(nothing_here) as server:
        clusters = [{"name": "old", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}]
        contexts = [{"name": "old", "context": {"cluster": "old"}}]
        kubeconfig.write_text(json.dumps({"clusters": clusters, "contexts": contexts, "current-context": "old"}))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "draco", "operator", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"),
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode() == (
        "Error: The cluster does not serve resource.k8s.io/v1, so no GPU can be claimed. "
        "Upgrade to Kubernetes 1.34 or newer.\n"
    )


async def test_a_taken_port_is_said_in_one_sentence(
    served: ControlPlane, lease: Lease, tmp_path: Path, unused_tcp_port: int
) -> None:
    server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", unused_tcp_port)
    async with server:
        log = tmp_path / "log"
        with log.open("w") as stream:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "draco", "operator", "--kubeconfig", str(served.kubeconfig)),
                *("--listen", f"127.0.0.1:{unused_tcp_port}", *lease.options),
                stderr=stream,
            )
        async with asyncio.timeout(60):
            assert await process.wait() == 1
    assert f"Cannot serve probes and metrics on 127.0.0.1:{unused_tcp_port} (address already in use)" in log.read_text()
    assert "Traceback" not in log.read_text()


async def test_each_replica_serves_secure_metrics_and_plain_probes(
    served: ControlPlane, namespace: str, lease: Lease, tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    tokens = accounts_in(served, namespace)
    scrapers = [Scraper(tmp_path), Scraper(tmp_path)]
    scrapers[0].show(scrapers[0].authority)
    async with AsyncExitStack() as stack:
        for scraper in scrapers:
            scraper.port = unused_tcp_port_factory()
            options = ("--metrics-listen", f"127.0.0.1:{scraper.port}", "--metrics-certificates", str(tmp_path))
            replica = await Process.start(served, tmp_path, *lease.options, *options)
            stack.push_async_callback(replica.kill)

            async def scraped(scraper: Scraper = scraper) -> bool:
                return (await scraper.scrape(tokens["prometheus"], trusts=scrapers[0].authority))[0] == 200

            await until(scraped, what="metrics")
            assert (await scraper.scrape(tokens["tenant"], trusts=scrapers[0].authority))[0] == 403
            assert (await replica.get("/metrics"))[0] == 404
            assert (await replica.get("/livez"))[0] == 200
