"""NVML may refuse any call for one GPU from the agent's start: other GPUs are served, and this one is shown or named.

What the agent asks, and what each call is needed for, is the table in docs/reference/nvml.md.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
import pytest

from draco.agent.claims import recovery
from draco.agent.claims.cdi import CdiFolder
from draco.agent.files import Files
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.fault_record import FaultRecord
from draco.agent.hardware.monitor import HardwareMonitor, HardwareView, SysfsPcieRoots
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_instances import NvmlInstances
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.mig.instance_manager import InstanceManager
from draco.agent.mig.inventory import MigInventory
from draco.agent.plugin.registration import RegistrationState
from draco.agent.publish.device_names import KnownGpus
from draco.agent.publish.offering import Offering
from draco.agent.record.checkpoint import Checkpoint, RecordState
from draco.agent.record.contents import PreparedClaim
from draco.agent.report.node_status import NodeReport, status
from draco.agent.state.facts import NodeFacts, PublishedPool
from draco.agent.state.node import NodeState
from draco.health.table import HealthState
from draco.kube.clock import SystemClock
from draco.mig.keeping import KeptInstances
from draco.resources.api.draco import GpuNodeStatus
from draco.resources.api.meta import find_condition
from draco.resources.api.slices import Device
from draco.resources.names import NVIDIA_DRIVER
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import procfs, state
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.builders import a_claim
from tests.doubles.undivided import a_preparer

REPOSITORY = Path(__file__).parents[4]
DOCUMENT = REPOSITORY / "docs" / "reference" / "nvml.md"
HARDWARE = REPOSITORY / "operator" / "draco" / "agent" / "hardware"
CALLS = dict(re.findall(r"^\| `(nvml\w+)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE))
"""What each call is needed for."""
LACKING = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")
UNASKABLE = ("NO_PERMISSION", "ARGUMENT_VERSION_MISMATCH")
UNKNOWN = ("UNKNOWN", "TIMEOUT")
LOST = ("GPU_IS_LOST",)
CASES = [
    *((function, code) for function in sorted(CALLS) for code in ("NOT_SUPPORTED", "NO_PERMISSION", "UNKNOWN", *LOST)),
    *(
        (function, code)
        for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetGpuFabricInfoV", "nvmlEventSetCreate")
        for code in ("FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "TIMEOUT")
    ),
]
ASKED = frozenset(
    f"nvml{name}"
    for name in (
        *("SystemGetDriverVersion", "SystemGetCudaDriverVersion_v2", "DeviceGetName", "DeviceGetBrand"),
        *("DeviceGetArchitecture", "DeviceGetCudaComputeCapability", "DeviceGetMemoryInfo", "EventSetCreate"),
        *("EventSetWait_v2", "DeviceRegisterEvents", "DeviceGetSupportedEventTypes", "DeviceGetFieldValues"),
    )
)
"""Calls that every board and every driver should support."""
READINGS = 4
"""Enough readings for an unreadable GPU to be kept from new claims."""


class ForOne(SimulatedNvml):
    """Simulated NVML that refuses one function for the first GPU, identified by its index or UUID."""

    refuses: tuple[str, int] = ("", 0)
    first: str = ""

    def __getattribute__(self, name: str) -> Any:
        function, code = object.__getattribute__(self, "refuses")
        if name != function or not name.startswith("nvmlDeviceGetHandleBy"):
            return super().__getattribute__(name)
        first = object.__getattribute__(self, "first")

        def refuse(which: object) -> Any:
            if which in (0, first):
                raise pynvml.NVMLError(code)
            return SimulatedNvml.__getattr__(self, name)(which)

        return refuse

    __getattr__ = SimulatedNvml.__getattr__


class Seen(NamedTuple):
    """What an agent reports after some readings."""

    view: HardwareView
    devices: dict[str, Device]
    status: GpuNodeStatus
    prepare: Callable[[str], PreparedClaim]


@asynccontextmanager
async def an_agent(folder: Path, *, refuses: tuple[str, int] = ("", 0)) -> AsyncIterator[Seen]:
    """The part of an agent that reads NVML, after its start and four readings."""
    path, files = folder / "gpus.json", Files()
    library = ForOne(path)
    library.refuses, library.first = refuses, state.load(path).gpus[0].uuid
    nvml = Nvml(library)
    edge = NvmlInstances(nvml)
    record = Checkpoint(folder / "state" / "checkpoint.json", files, boot_id="")
    found = recovery.read_record(folder / "state" / "checkpoint.json", files)
    assert isinstance(found, RecordState)
    record.restore(found)
    inventory = MigInventory(record, edge, boot_id="boot", monotonic=lambda: 0.0)
    instances = ClaimInstances(
        record,
        inventory,
        InstanceManager(record, edge, inventory, holder=lambda *_: ""),
        keeping=lambda _uuid: KeptInstances(),
        monotonic=lambda: 0.0,
    )
    cdi = CdiFolder(
        folder / "cdi", files, driver=NVIDIA_DRIVER, node=Capabilities(proc=folder / "proc"), boot_id="boot"
    )
    desk = a_preparer(record, cdi, instances=instances)

    async def at_once(work: Callable[[], Any]) -> Any:
        return work()

    known = KnownGpus(record, NodeState(SystemClock()), in_thread=at_once)
    known.tell()
    known.record()
    monitor = HardwareMonitor(
        nvml,
        SysfsPcieRoots(folder),
        faults=FaultRecord(
            folder / "faults.json", files, boot_id="boot", driver_load=lambda: "", now=SystemClock().now
        ),
        divided=inventory.look,
        named=known.view,
        clock=SystemClock(),
        rescan_s=0.005,
        retry_s=0.005,
        event_wait_s=0.001,
    )
    views: asyncio.Queue[HardwareView] = asyncio.Queue()
    monitor.subscribe(views.put_nowait)
    running = asyncio.create_task(monitor.run())
    try:
        async with asyncio.timeout(60):
            for _ in range(READINGS):
                view = await views.get()
        assert not running.done(), "the agent goes on"
        offer = (
            Offering().offer(view.gpus, view.driver, migs=inventory.divisions, wanted={}, now_s=0.0)
            if view.driver
            else None
        )
        said = NodeReport(
            driver=NVIDIA_DRIVER,
            facts=NodeFacts(
                view=view,
                published=PublishedPool(1, 2),
                problem="",
                divisions=inventory.divisions,
                recovered=True,
            ),
            registration=RegistrationState(accepted=True, error=""),
            claims=0,
        )
        yield Seen(
            view,
            {} if offer is None else {one.name: one for one in offer.devices},
            status(said, generation=1),
            lambda device: desk.prepare(a_claim(f"of-{device}", on=[f"node-0/{device}"]), view.by_device),
        )
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def build(folder: Path) -> Path:
    path = folder / "gpus.json"
    state.create(path, board="H100-80GB", gpus=2, node_name="node-0")
    procfs.build(path, state.load(path)).rename(folder / "proc")
    return path


def refuse(path: Path, function: str, code: int) -> tuple[str, int]:
    """Refuse the call for the first GPU, or for the node if the call is not about a GPU."""
    if function.startswith("nvmlDeviceGetHandleBy"):
        return function, code
    if function != "nvmlShutdown":
        about_one = function.startswith("nvmlDevice") and function != "nvmlDeviceGetCount"
        faults.fail(path, function, code, gpu=0 if about_one else None)
    return "", 0


def blocked(device: Device) -> bool:
    return any(one.effect in ("NoSchedule", "NoExecute") for one in device.taints)


def test_the_table_has_every_call_that_the_agent_makes() -> None:
    made = {
        name
        for file in (*HARDWARE.glob("nvml*.py"), HARDWARE / "time_slicing.py", HARDWARE / "compute_mode.py")
        for name in re.findall(r'["\.](nvml(?:Init|Shutdown|[A-Z]\w*[a-z]+\w*))\b["(]', file.read_text())
        if hasattr(pynvml, name)
    }
    assert made == set(CALLS)
    assert {"nvmlDeviceGetMemoryInfo", "nvmlEventSetWait_v2"} <= made


@pytest.mark.exhaustive
@pytest.mark.parametrize(("function", "code"), CASES)
async def test_one_refused_call_costs_no_more_than_what_it_is_needed_for(
    tmp_path: Path, function: str, code: str
) -> None:
    path, kind = build(tmp_path), CALLS[function]
    error = faults.ERRORS[code]
    async with an_agent(tmp_path, refuses=refuse(path, function, error)) as fresh:
        judge(fresh, function, kind, code, None)
    (tmp_path / "state" / "checkpoint.json").unlink(missing_ok=True)
    (tmp_path / "faults.json").unlink(missing_ok=True)
    faults.stop_failing(path)
    async with an_agent(tmp_path) as well:
        assert set(well.devices) == {"gpu-0", "gpu-1"}
        assert not any(gpu.notes for gpu in well.status.gpus)
    async with an_agent(tmp_path, refuses=refuse(path, function, error)) as again:
        judge(again, function, kind, code, well)


def judge(seen: Seen, function: str, kind: str, code: str, before: Seen | None) -> None:
    if kind == "session" and function != "nvmlShutdown":
        assert seen.view.fault, "nothing can be read, which is said"
        readable = find_condition(seen.status.conditions, "Readable")
        assert readable is not None
        assert readable.message == seen.view.fault
        return
    assert seen.view.fault == ""
    assert not blocked(seen.devices["gpu-1"]), "the other GPU takes claims, under its name"
    assert seen.prepare("gpu-1").devices[0].minor == 1
    [sound] = [gpu for gpu in seen.status.gpus if gpu.device == "gpu-1"]
    assert (sound.health, sound.notes, sound.faults) == ("Healthy", [], [])
    if kind == "identity":
        [named] = seen.status.unidentified
        assert (named.index, named.message[-1]) == (0, ".")
        assert ("gpu-0" in seen.devices) is (before is not None)
        assert before is None or blocked(seen.devices["gpu-0"])
        return
    assert seen.status.unidentified == []
    [other] = [gpu for gpu in seen.status.gpus if gpu.device == "gpu-0"]
    if code in (*LACKING, *UNASKABLE) and kind != "MIG":
        assert other.faults == [], "nothing is wrong with it"
        assert not blocked(seen.devices["gpu-0"])
        assert other.health == HealthState.HEALTHY
        assert seen.prepare("gpu-0").devices[0].minor == 0
    if kind == "fact" and function.startswith("nvmlDevice") and before is not None and code not in LACKING:
        assert attributes(seen) == attributes(before), "what was told before is not forgotten"
    complete = find_condition(seen.status.conditions, "Complete")
    assert complete is not None
    if function in ASKED and (kind in ("fact", "events") or code in UNASKABLE):
        assert (function if code not in LOST else "The GPU is lost") in complete.message, (
            "whoever looks for it finds out why it is not there"
        )


def attributes(seen: Seen) -> object:
    return [(one.attributes, one.capacity) for one in seen.devices.values()]
