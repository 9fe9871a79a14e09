"""The endpoints of the operator and of the agent."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from draco.controller.metrics import ScrapedMetric
from draco.endpoints import PortTaken, http_app, serving


class Probed:
    """The results of the probes."""

    def __init__(self) -> None:
        self.dead: list[str] = []
        self.unready: list[str] = []
        self.registry = CollectorRegistry()
        self.url = ""


@pytest.fixture
async def probed() -> AsyncIterator[Probed]:
    state = Probed()
    app = http_app(lambda: state.registry, alive=lambda: state.dead, ready=lambda: state.unready)
    async with serving(app, "127.0.0.1", 0) as port:
        state.url = f"http://127.0.0.1:{port}"
        yield state


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_all_is_well_when_no_check_complains(probed: Probed) -> None:
    assert await get(f"{probed.url}/livez") == (200, "ok\n")
    assert await get(f"{probed.url}/readyz") == (200, "ok\n")


async def test_a_complaint_is_a_503_that_names_it(probed: Probed) -> None:
    probed.dead = ["maintenance: one reconciliation has been running for 130 s"]
    probed.unready = ["Pod: not listed yet", "Node: not listed yet"]
    assert await get(f"{probed.url}/livez") == (503, "maintenance: one reconciliation has been running for 130 s\n")
    assert await get(f"{probed.url}/readyz") == (503, "Pod: not listed yet\nNode: not listed yet\n")


async def test_metrics_are_those_of_the_given_registry_alone(probed: Probed) -> None:
    Gauge("draco_something", "Help.", registry=probed.registry).set(3)
    status, text = await get(f"{probed.url}/metrics")
    assert status == 200
    assert "draco_something 3.0" in text
    assert "python_info" not in text


async def test_a_scrape_for_one_name_does_not_compute_the_others(probed: Probed) -> None:
    def dear() -> float:
        raise AssertionError("nobody asked for it")

    probed.registry.register(ScrapedMetric("draco_cheap", "Help.", [], lambda: 1.0))
    probed.registry.register(ScrapedMetric("draco_dear", "Help.", [], dear))
    status, text = await get(f"{probed.url}/metrics?name[]=draco_cheap")
    assert status == 200
    assert "draco_cheap 1.0" in text


async def test_a_taken_port_is_one_sentence_with_a_remedy(probed: Probed) -> None:
    port = int(probed.url.rpartition(":")[2])
    app = http_app(CollectorRegistry, alive=list, ready=list)
    with pytest.raises(PortTaken, match=rf"cannot serve .* on 127\.0\.0\.1:{port} .*choose another with --listen"):
        async with serving(app, "127.0.0.1", port):
            pytest.fail("it must not serve")
