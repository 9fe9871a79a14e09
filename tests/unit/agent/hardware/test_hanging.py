"""NVML calls that do not return: which one it is, what the view says meanwhile, and that the hang ends with the answer."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.agent.files import Files
from draco.agent.hardware.fault_record import FaultRecord
from draco.agent.hardware.monitor import HardwareMonitor, HardwareView, SysfsPcieRoots
from draco.agent.hardware.nvml import Nvml
from draco.agent.plugin.health_service import reports
from draco.health.table import HealthState
from draco.kube.clock import SystemClock
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.state import create, load
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.agents import eventually
from tests.doubles.clock import ManualClock


class Watched:
    """The hardware of two GPUs with a manual clock."""

    def __init__(
        self, folder: Path, *, rescan_s: float = 10.0, retry_s: float = 5.0, event_wait_s: float = 0.0
    ) -> None:
        self.path = folder / "gpus.json"
        create(self.path, gpus=2, node_name="node-0")
        self.clock = ManualClock()
        self.nvml = Nvml(SimulatedNvml(self.path), monotonic=self.clock.monotonic)
        self.hardware = HardwareMonitor(
            self.nvml,
            SysfsPcieRoots(folder),
            faults=FaultRecord(
                folder / "faults.json", Files(), boot_id="", driver_load=lambda: "", now=SystemClock().now
            ),
            divided=lambda gpus: gpus,
            named=self._named,
            clock=self.clock,
            rescan_s=rescan_s,
            retry_s=retry_s,
            event_wait_s=event_wait_s,
            limit_s=30.0,
        )
        self.views: list[HardwareView] = []
        self.hardware.subscribe(self.views.append)
        self.rename: Callable[[HardwareView], HardwareView] = lambda view: view
        self.uuids = [gpu.uuid for gpu in load(self.path).gpus]

    async def _named(self, view: HardwareView) -> HardwareView:
        return self.rename(view)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Watched"]:
        running = asyncio.create_task(self.hardware.run())
        try:
            yield self
        finally:
            faults.stop_failing(self.path)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def calls(self, function: str) -> None:
        """Wait until a call of this function has begun."""

        def begun() -> bool:
            call = self.nvml.calling
            return call is not None and call.function == function

        await eventually(begun)

    @property
    def states(self) -> list[HealthState]:
        return [one.state for one in reports(self.hardware.view)]

    @property
    def faults(self) -> list[str]:
        return [one.fault.status.name if one.fault else "" for one in self.hardware.view.gpus]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Watched]:
    async with Watched(tmp_path).running() as watched:
        yield watched


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
        "node's kernel log, and reboot the node if it continues."
    )
    assert node.faults == ["", "DriverHangs"]
    assert node.states == [HealthState.UNKNOWN, HealthState.UNKNOWN]
    assert view.driver is not None, "what is known of the others stays"
    assert node.views[-1] == view, "whoever is told of views is told of this one"
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
    never = asyncio.create_task(asyncio.Event().wait())
    waits = asyncio.create_task(node.hardware.unless_hanging(never))  # type: ignore[arg-type]
    await node.clock.advance(5)
    assert not waits.done()
    never.cancel()
    await waits


async def test_an_answer_that_is_an_error_ends_it_as_well(node: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    await read(node)
    faults.hang(node.path, "nvmlDeviceGetCount")
    await node.clock.advance(10)
    await node.calls("nvmlDeviceGetCount")
    await node.clock.advance(40)
    assert node.hardware.view.hang is not None
    before = len(node.views)
    faults.break_driver(node.path)
    closes, goes_on, close = threading.Event(), threading.Event(), node.nvml.close

    def close_slowly() -> None:
        closes.set()
        goes_on.wait(60)
        close()

    monkeypatch.setattr(node.nvml, "close", close_slowly)
    faults.stop_failing(node.path)
    await eventually(closes.is_set)

    async def over() -> bool:
        await node.clock.advance(1)
        return node.hardware.view.hang is None

    await eventually(over)
    goes_on.set()
    assert node.hardware.view.fault.startswith("NVML is not available")
    assert [view for view in node.views[before:] if not view.fault] == []
    assert node.faults == ["", ""]


async def test_whoever_waits_to_look_again_does_not_hang(tmp_path: Path) -> None:
    async with Watched(tmp_path, rescan_s=100, retry_s=200).running() as node:
        await eventually(lambda: 100 in node.clock.wakes_s)  # the GPUs are read
        await node.clock.advance(90)
        assert node.hardware.view.hang is None
        faults.break_driver(node.path)
        await node.clock.advance(10)
        await eventually(lambda: 200 in node.clock.wakes_s)  # no driver was found
        assert node.hardware.view.fault
        await node.clock.advance(100)
        assert (node.hardware.view.hang, node.faults) == (None, ["", ""])


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


async def test_a_short_call_of_who_keeps_nvml_for_long_is_not_to_blame(node: Watched) -> None:
    await read(node)
    keeps, begin = threading.Event(), threading.Event()

    def keep() -> None:
        with node.nvml.lock:
            keeps.set()
            begin.wait(30)
            node.nvml.call("nvmlSystemGetDriverVersion")

    thread = threading.Thread(target=keep)
    thread.start()
    await eventually(keeps.is_set)
    await node.clock.advance(38)
    faults.hang(node.path, "nvmlSystemGetDriverVersion")
    begin.set()
    await node.calls("nvmlSystemGetDriverVersion")
    await node.clock.advance(5)
    assert node.hardware.view.fault.startswith("The GPUs have not been read since 00:00:10 UTC")
    assert node.faults == ["", ""]
    await node.clock.advance(20)
    assert node.faults == ["DriverHangs", "DriverHangs"], "by now it is the one that hangs"
    faults.stop_failing(node.path)
    thread.join()


async def test_what_an_event_means_is_shown_before_the_next_reading_and_stays(tmp_path: Path) -> None:
    async with Watched(tmp_path, rescan_s=3600, event_wait_s=1.0).running() as node:
        await read(node)
        faults.hang(node.path, "nvmlDeviceGetMemoryInfo")
        faults.xid(node.path, 1, 79)
        await eventually(lambda: node.faults == ["", "Xid79"])
        await node.calls("nvmlDeviceGetMemoryInfo")
        node.rename = lambda view: msgspec.structs.replace(view, gpus=view.gpus[1:])
        await node.hardware.show_again()
        assert node.faults == ["Xid79"], "also when the last reading is shown once more, under other names"


async def test_what_happens_right_after_the_first_reading_is_not_missed(tmp_path: Path) -> None:
    node = Watched(tmp_path, rescan_s=3600, event_wait_s=1.0)
    node.hardware.subscribe(lambda view: faults.xid(node.path, 0, 95) if len(node.views) == 1 else None)
    async with node.running():
        await eventually(lambda: node.faults == ["Xid95", ""])


async def test_a_driver_that_was_loaded_anew_is_read_again_and_has_reset_its_gpus(tmp_path: Path) -> None:
    async with Watched(tmp_path, rescan_s=3600, event_wait_s=1.0).running() as node:
        await read(node)
        faults.xid(node.path, 0, 95)
        await eventually(lambda: node.faults == ["Xid95", ""] and len(node.views) > 2)
        faults.reload_driver(node.path)
        await eventually(lambda: node.hardware.view.fault)
        assert node.views[-1].fault == node.hardware.view.fault
        await eventually(lambda: 5 in node.clock.wakes_s)
        await node.clock.advance(5)
        await eventually(lambda: not node.hardware.view.fault)
        assert node.faults == ["Xid95", ""], "one clean reading is not enough"
        while any(node.faults):  # advances the clock until two more readings are done
            await node.clock.advance(2)
            await asyncio.sleep(0.02)  # the reading thread runs in real time: the clock must not run ahead of it
        assert node.clock.monotonic() < 3600


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
