"""A policy that judges a fault while the GPUs are being read takes effect immediately, and the reading does not undo it."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from draco.agent.files import Files
from draco.agent.hardware.fault_record import FaultRecord
from draco.agent.hardware.faults import UNREADABLE, health, with_fault
from draco.agent.hardware.gpus import Gpu
from draco.agent.hardware.monitor import HardwareMonitor, HardwareView, SysfsPcieRoots
from draco.agent.hardware.nvml import Nvml
from draco.kube.clock import SystemClock
from draco.resources.api.health import FaultOverride, HealthEffect
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.state import create, load
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.doubles.clock import ManualClock

HEAT = "ThermalSlowdown"


class Watched:
    """The hardware of one hot GPU; a policy arrives in the middle of a reading."""

    def __init__(self, folder: Path) -> None:
        path = folder / "gpus.json"
        create(path, gpus=1, node_name="node-0")
        self.uuid = load(path).gpus[0].uuid
        faults.temperature(path, 0, 99)
        self.record = FaultRecord(
            folder / "faults.json", Files(), boot_id="", driver_load=lambda: "", now=SystemClock().now
        )
        self.during_reading: Callable[[], None] = lambda: None
        self.during_naming: Callable[[], None] = lambda: None
        self.hardware = HardwareMonitor(
            Nvml(SimulatedNvml(path)),
            SysfsPcieRoots(folder),
            faults=self.record,
            divided=self._divided,
            named=self._named,
            clock=ManualClock(),
            rescan_s=10.0,
            retry_s=5.0,
            event_wait_s=0.0,
            limit_s=30.0,
        )

    def _divided(self, gpus: Sequence[Gpu]) -> Sequence[Gpu]:
        self.during_reading()
        return gpus

    async def _named(self, view: HardwareView) -> HardwareView:
        once, self.during_naming = self.during_naming, lambda: None
        once()
        return view

    def policy_says(self) -> None:
        """Apply an override, as the agent does when its GpuNode changes."""
        self.record.overrides = (
            FaultOverride(uuid=self.uuid, fault=HEAT, effect=HealthEffect.NO_EXECUTE, policy="strict"),
        )
        self.hardware.judge_again()

    async def effect(self) -> HealthEffect:
        """The effect of the heat after the first reading."""
        running = asyncio.create_task(self.hardware.run())
        try:
            await asyncio.wait_for(self.hardware.ready.wait(), 30.0)
            [fault] = self.hardware.view.gpus[0].faults
            return fault.status.effect
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@pytest.mark.parametrize("when", ["read", "named"])
async def test_a_policy_is_heeded_that_speaks_while_the_gpus_are(when: str, tmp_path: Path) -> None:
    watched, loop = Watched(tmp_path), asyncio.get_running_loop()

    def from_the_thread() -> None:
        said = threading.Event()
        for each in (watched.policy_says, said.set):
            loop.call_soon_threadsafe(each)
        assert said.wait(30.0)

    if when == "read":
        watched.during_reading = from_the_thread
    else:
        watched.during_naming = watched.policy_says
    assert await watched.effect() is HealthEffect.NO_EXECUTE


async def test_a_gpu_that_is_not_read_now_keeps_its_fault_whatever_is_judged_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    await watched.effect()
    gpu = watched.hardware.view.gpus[0]
    unplaced = with_fault(msgspec.structs.replace(gpu, minor=-1), UNREADABLE, "NVML does not say which it is.")
    [again] = watched.record.judge([unplaced])
    assert (again.fault, health(again)) == (unplaced.fault, health(unplaced))
    assert [one.status.name for one in again.faults] == [UNREADABLE, HEAT]
    assert watched.record.judge([again]) == [again]
