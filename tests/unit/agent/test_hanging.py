"""A call of NVML that does not return: which one it is, what the view says meanwhile, and that it is over when it answers."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from draco.agent.fault_record import FaultRecord
from draco.agent.files import LocalFiles
from draco.agent.gpus import HealthState
from draco.agent.hardware import Hardware, View
from draco.agent.health_service import reports
from draco.agent.nvml import Nvml
from draco.agent.pcie import SysfsPcieRoots
from draco.simulator import faults
from draco.simulator.nvml import SimulatedNvml
from draco.simulator.state import create, load
from tests.agents import eventually
from tests.doubles.clock import ManualClock


class Watched:
    """Hardware of two GPUs under a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gpus.json"
        create(self.path, gpus=2, node_name="node-0")
        self.clock = ManualClock()
        self.nvml = Nvml(SimulatedNvml(self.path), monotonic=self.clock.monotonic)
        self.hardware = Hardware(
            self.nvml,
            SysfsPcieRoots(folder),
            faults=FaultRecord(folder / "faults.json", LocalFiles(), boot_id="", driver_load=lambda: ""),
            divided=lambda gpus: gpus,
            named=self._named,
            clock=self.clock,
            rescan_s=10.0,
            retry_s=5.0,
            event_wait_s=0.0,
            limit_s=30.0,
        )
        self.views: list[View] = []
        self.hardware.subscribe(self.views.append)
        self.uuids = [gpu.uuid for gpu in load(self.path).gpus]

    async def _named(self, view: View) -> View:
        return view

    async def calls(self, function: str) -> None:
        """Once a call has begun."""

        def begun() -> bool:
            call = self.nvml.calling
            return call is not None and call.function == function

        await eventually(begun)

    @property
    def states(self) -> list[HealthState]:
        return [one.state for one in reports(self.hardware.view)]

    @property
    def faults(self) -> list[str]:
        return [one.gpu.fault.name if one.gpu.fault else "" for one in self.hardware.view.gpus]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = Watched(tmp_path)
    running = asyncio.create_task(watched.hardware.run())
    yield watched
    faults.stop_failing(watched.path)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def read(node: Watched) -> None:
    await eventually(lambda: node.hardware.view.gpus)


async def test_a_call_that_hangs_is_named_and_the_gpu_it_is_about_takes_no_new_work(node: Watched) -> None:
    await read(node)
    faults.hang(node.path, "nvmlDeviceGetMemoryInfo", gpu=1)
    await node.clock.advance(10)
    await node.calls("nvmlDeviceGetMemoryInfo")
    await node.clock.advance(29)
    assert node.hardware.view.hang is None
    await node.clock.advance(3)
    view = node.hardware.view
    assert view.hang is not None
    assert (view.hang.function, view.hang.gpu) == ("nvmlDeviceGetMemoryInfo", node.uuids[1])
    assert view.fault == (
        f"NVML's nvmlDeviceGetMemoryInfo for GPU {node.uuids[1]} has not answered since 00:00:10 UTC; look for NVRM in the "
        "node's kernel log, and reboot the node if it stays so."
    )
    assert node.faults == ["", "DriverHangs"]
    assert node.states == [HealthState.UNKNOWN, HealthState.UNKNOWN]
    assert view.driver is not None, "what is known of the others stays"
    said = len(node.views)
    await node.clock.advance(600)
    assert (len(node.views), node.hardware.view.fault) == (said, view.fault), "said once"
    assert node.hardware.reading_age_s >= 600


async def test_an_answer_that_comes_late_ends_it(node: Watched) -> None:
    await read(node)
    faults.hang(node.path, "nvmlDeviceGetMemoryInfo", gpu=1)
    await node.clock.advance(10)
    await node.calls("nvmlDeviceGetMemoryInfo")
    await node.clock.advance(40)
    assert node.hardware.view.hang is not None
    faults.stop_failing(node.path)
    await eventually(lambda: node.hardware.view.hang is None)
    assert (node.faults, node.hardware.view.fault) == (["", ""], "")
    assert node.hardware.reading_age_s == 0


async def test_the_very_first_call_may_hang_and_waiting_for_it_ends(tmp_path: Path) -> None:
    node = Watched(tmp_path)
    faults.hang(node.path, "nvmlDeviceGetCount")
    running = asyncio.create_task(node.hardware.run())
    never = asyncio.create_task(asyncio.Event().wait())
    await node.calls("nvmlDeviceGetCount")
    await node.clock.advance(32)
    assert node.hardware.ready.is_set()
    await node.hardware.unless_hanging(never)  # type: ignore[arg-type]
    assert node.hardware.view.driver is None
    assert node.hardware.view.fault.startswith("NVML's nvmlDeviceGetCount has not answered since 00:00:00 UTC")
    never.cancel()
    faults.stop_failing(node.path)
    await eventually(lambda: node.hardware.view.gpus)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_of_a_call_that_names_no_gpu_any_may_be_the_cause(node: Watched) -> None:
    await read(node)
    faults.hang(node.path, "nvmlSystemGetDriverVersion")
    await node.clock.advance(10)
    await node.calls("nvmlSystemGetDriverVersion")
    await node.clock.advance(32)
    assert node.faults == ["DriverHangs", "DriverHangs"]


async def test_a_fault_that_was_known_before_is_not_covered_up(node: Watched) -> None:
    await read(node)
    faults.recovery_action(node.path, 0, 1)
    await node.clock.advance(10)
    await eventually(lambda: node.faults == ["NeedsReset", ""])
    faults.hang(node.path, "nvmlSystemGetDriverVersion")
    await node.clock.advance(10)
    await node.calls("nvmlSystemGetDriverVersion")
    await node.clock.advance(32)
    assert node.faults == ["NeedsReset", "DriverHangs"]
    assert node.states == [HealthState.UNHEALTHY, HealthState.UNKNOWN]


async def test_who_keeps_nvml_for_long_and_gets_answers_is_no_reason_to_keep_work_off_the_gpus(node: Watched) -> None:
    await read(node)
    keeps, let_go = threading.Event(), threading.Event()

    def keep() -> None:
        with node.nvml.lock:
            keeps.set()
            let_go.wait(30)

    thread = threading.Thread(target=keep)
    thread.start()
    await eventually(keeps.is_set)
    await node.clock.advance(50)
    assert node.faults == ["", ""]
    assert node.hardware.view.fault.startswith("The GPUs have not been read since 00:00:10 UTC")
    assert node.states == [HealthState.UNKNOWN, HealthState.UNKNOWN]
    let_go.set()
    await eventually(lambda: not node.hardware.view.fault)
    thread.join()


async def test_a_call_on_an_instance_is_about_the_gpu_that_was_asked_before(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    create(path, gpus=2, node_name="node-0")
    seen: list[Any] = []

    class Listening:
        def __init__(self) -> None:
            self._simulated = SimulatedNvml(path)

        def __getattr__(self, name: str) -> Any:
            seen.append(nvml.calling)
            return getattr(self._simulated, name)

    nvml = Nvml(Listening())
    nvml.open()
    gpus = nvml.gpus()
    nvml.optional("nvmlDeviceGetMigMode", nvml.handle(gpus[1].uuid))
    with suppress(Exception):
        nvml.call("nvmlGpuInstanceGetInfo", object())
    nvml.call("nvmlSystemGetDriverVersion")
    last = [(one.function, one.gpu) for one in seen[-3:]]
    assert last == [
        ("nvmlDeviceGetMigMode", gpus[1].uuid),
        ("nvmlGpuInstanceGetInfo", gpus[1].uuid),
        ("nvmlSystemGetDriverVersion", ""),
    ]
    assert nvml.calling is None
