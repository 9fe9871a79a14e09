"""Metrics over TLS with a real API server: service accounts, roles, and an outage."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from draco.certificates import CertificateMetrics
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.delegation import serving_metrics
from draco.options import MetricsSettings
from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.pki import Authority
from tests.component.controller.replicas import until
from tests.doubles.faultproxy import FaultProxy, answer, anything
from tests.scraping import Scraper, accounts_in


@asynccontextmanager
async def metrics(client: Client, folder: Path) -> AsyncIterator[Scraper]:
    registry = CollectorRegistry()
    Gauge("draco_something", "Help.", registry=registry).set(3)
    settings = MetricsSettings(host="127.0.0.1", port=0, certificates=folder)
    scraper = Scraper(folder)
    async with serving_metrics(
        settings, lambda: registry, certificates=CertificateMetrics(registry), client=client, clock=SystemClock()
    ) as scraper.port:
        yield scraper


@pytest.fixture
def accounts(api_server: ControlPlane, namespace: str) -> dict[str, str]:
    return accounts_in(api_server, namespace)


async def test_metrics_are_for_those_who_may_get_them(
    client: Client, accounts: dict[str, str], namespace: str, tmp_path: Path
) -> None:
    async with metrics(client, tmp_path) as scraper:
        scraper.show(scraper.authority)

        async def answered() -> bool:
            return (await scraper.scrape(accounts["prometheus"]))[0] == 200

        await until(answered, what="metrics for who may read them")
        assert "draco_something 3.0" in (await scraper.scrape(accounts["prometheus"]))[1]
        code, said = await scraper.scrape(accounts["tenant"])
        assert code == 403
        assert said.startswith(f"system:serviceaccount:{namespace}:tenant may not get /metrics: ")
        assert await scraper.scrape("nonsense") == (401, "the cluster does not know this token, or no longer\n")
        assert (await scraper.scrape())[0] == 401


async def test_without_a_certificate_nobody_is_answered_until_there_is_one_and_a_new_one_is_shown(
    client: Client, accounts: dict[str, str], tmp_path: Path
) -> None:
    async with metrics(client, tmp_path) as scraper:
        assert (await scraper.scrape(accounts["prometheus"]))[0] == 0
        for authority in (scraper.authority, Authority.create("other")):
            scraper.show(authority)

            async def shown(authority: Authority = authority) -> bool:
                return (await scraper.scrape(accounts["prometheus"], trusts=authority))[0] == 200

            await until(shown, what="the certificate")
        assert (await scraper.scrape(accounts["prometheus"]))[0] == 0, "the old one is shown no more"


async def test_an_api_server_that_fails_opens_no_door(
    proxy: FaultProxy, through: Client, accounts: dict[str, str], tmp_path: Path
) -> None:
    async with metrics(through, tmp_path) as scraper:
        scraper.show(scraper.authority)
        proxy.fault(anything, answer(500), times=2)

        async def asked() -> int:
            return (await scraper.scrape(accounts["prometheus"]))[0]

        assert await until(asked, what="an answer") == 503
        assert await asked() == 503
        assert await asked() == 200


async def test_nothing_else_is_served_there_and_plain_requests_are_not_answered(client: Client, tmp_path: Path) -> None:
    async with metrics(client, tmp_path) as scraper:
        scraper.show(scraper.authority)

        async def served() -> int:
            return (await scraper.scrape(path="/livez"))[0]

        assert await until(served, what="TLS") == 404
        reader, writer = await asyncio.open_connection("127.0.0.1", scraper.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in await asyncio.wait_for(reader.read(), 30)
        writer.close()
