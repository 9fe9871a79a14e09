"""When an agent begins to offer its GPUs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from draco.agent.hardware.gpus import DriverInfo, Located
from draco.agent.hardware.monitor import View
from draco.agent.publish.offers import PATIENCE_S, Offers
from tests.builders import a_gpu
from tests.doubles.clock import ManualClock

DRIVER = DriverInfo(driver_version="580.65.06", cuda_driver_version="13.0", nvml_version="13")


class Lab:
    """Offers of a node with one GPU, and what its publisher was told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.recovered, self.known = asyncio.Event(), asyncio.Event()
        self.told: list[list[str]] = []
        publisher: Any = SimpleNamespace(
            want=lambda devices, _counters: self.told.append([one.name for one in devices])
        )
        dividing: Any = SimpleNamespace(
            keeper=SimpleNamespace(known=self.known), offered=lambda _gpus: {}, wanted={}, promised={}, isolated=()
        )
        self.view = View(driver=DRIVER, gpus=(Located(a_gpu(0)),))
        self.offers = Offers(publisher, dividing, view=lambda: self.view, clock=self.clock, random=Random(0))

    @asynccontextmanager
    async def running(self, *, follows: bool = True) -> AsyncIterator[None]:
        run = self.offers.run(recovered=self.recovered, follows=follows, partitionable=True)
        task = asyncio.create_task(run)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def lab() -> Lab:
    return Lab()


async def test_nothing_is_offered_before_it_is_known_whose_instances_there_are_and_what_is_wanted(lab: Lab) -> None:
    async with lab.running():
        lab.offers.touch()
        await settle()
        assert lab.told == []
        lab.recovered.set()
        await settle()
        assert lab.told == []
        lab.known.set()
        await settle()
        assert lab.told == [["gpu-0"]]


async def test_a_cluster_without_gpunodes_is_not_asked_what_is_wanted(lab: Lab) -> None:
    async with lab.running(follows=False):
        lab.recovered.set()
        await settle()
        assert lab.told == [["gpu-0"]]


async def test_wishes_that_cannot_be_read_do_not_keep_whole_gpus_from_their_users_for_ever(lab: Lab) -> None:
    with capture_logs() as logs:
        async with lab.running():
            lab.recovered.set()
            await settle()
            await lab.clock.advance(PATIENCE_S - 1)
            assert lab.told == []
            await lab.clock.advance(2)
            await settle()
            assert lab.told == [["gpu-0"]]
    (said,) = [each for each in logs if each["event"] == "offers.wishes_unknown"]
    assert "gpunodes.draco.dev" in said["remedy"]
