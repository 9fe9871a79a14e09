"""Every return code of NVML that an agent distinguishes, and what it does about each, wherever it occurs.

One table, and one test for each place in which a code can occur: reading a GPU, reading its possible divisions, listing
instances, creating one, destroying one, waiting for events, and losing the driver.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from draco.agent.errors import InstanceHeld, PrepareError
from draco.agent.files import Files
from draco.agent.hardware import nvml_errors
from draco.agent.hardware.fault_record import FaultRecord
from draco.agent.hardware.faults import health
from draco.agent.hardware.gpus import Gpu, Use
from draco.agent.hardware.monitor import HardwareMonitor, HardwareView, SysfsPcieRoots
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_errors import (
    CallError,
    DriverError,
    DriverMismatched,
    DriverMissing,
    DriverReloaded,
    GpuLost,
    GpuUnknown,
    InsufficientResources,
    InUse,
    InvalidArgument,
    NoEvent,
    NotSupported,
    NvmlError,
    PermissionMissing,
    ResetRequired,
    Unreadable,
    VersionUnknown,
)
from draco.health.table import HealthState
from draco.kube.clock import SystemClock
from draco_local.simulator.accidents import faults
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.doubles.judged import at_first_sight, told
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

ONE = a_mig_claim("one", *names([(9, 4)]))
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


class Code(NamedTuple):
    """A return code: its error class, its message, and whether NVML has certainly done nothing."""

    kind: type[NvmlError]
    told: str
    refusal: bool = False


CODES = {
    "UNINITIALIZED": Code(DriverReloaded, "NVML must be opened again"),
    "INVALID_ARGUMENT": Code(InvalidArgument, "rejected its arguments; report this with the output of", refusal=True),
    "NOT_SUPPORTED": Code(NotSupported, "This GPU does not support NVML's", refusal=True),
    "ARGUMENT_VERSION_MISMATCH": Code(VersionUnknown, "is too old for this way to call NVML's", refusal=True),
    "FUNCTION_NOT_FOUND": Code(NotSupported, "is too old for NVML's", refusal=True),
    "NO_PERMISSION": Code(PermissionMissing, "needs more rights; run the agent as root", refusal=True),
    "NOT_FOUND": Code(GpuUnknown, "look for it with `nvidia-smi -L`"),
    "DRIVER_NOT_LOADED": Code(DriverMissing, "load it with `modprobe nvidia`"),
    "TIMEOUT": Code(NoEvent, "timed out"),
    "GPU_IS_LOST": Code(GpuLost, "drain and reboot the node"),
    "RESET_REQUIRED": Code(ResetRequired, "drain it and run `nvidia-smi --gpu-reset`"),
    "LIB_RM_VERSION_MISMATCH": Code(DriverMismatched, "reload the driver or reboot the node"),
    "IN_USE": Code(InUse, "the GPU or instance is still in use"),
    "INSUFFICIENT_RESOURCES": Code(InsufficientResources, "the GPU has no room there", refusal=True),
    "INVALID_STATE": Code(Unreadable, "answered Invalid State (code 29); look for NVRM in the kernel log"),
    "UNKNOWN": Code(Unreadable, "answered Unknown Error (code 999); look for NVRM in the kernel log"),
}
DRIVER = sorted(name for name, code in CODES.items() if issubclass(code.kind, DriverError))
GPU = sorted(CODES.keys() - DRIVER)
codes = pytest.mark.parametrize("name", sorted(CODES))


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path)


def watched(folder: Path) -> tuple[MigNode, list[str]]:
    """A node, and a list that records the NVML functions called."""
    build(folder)
    called: list[str] = []
    node = MigNode(folder, step=lambda point: called.append(point.removeprefix("before ")))
    called.clear()
    return node, called


def dirty(node: MigNode) -> bool:
    return node.mig.divisions[node.uuid].dirty


def test_every_kind_of_error_has_a_code_here() -> None:
    made = {one for one in vars(nvml_errors).values() if isinstance(one, type) and issubclass(one, NvmlError)}
    assert {code.kind for code in CODES.values()} == made - {NvmlError, DriverError, CallError}


@codes
def test_a_code_is_one_sentence_that_says_what_to_do(node: MigNode, name: str) -> None:
    faults.fail(node.path, "nvmlDeviceGetMemoryInfo", faults.ERRORS[name])
    with pytest.raises(CODES[name].kind, match=re.escape(CODES[name].told)) as caught:
        node.nvml.call("nvmlDeviceGetMemoryInfo", node.nvml.handle(node.uuid))
    assert type(caught.value) is CODES[name].kind
    assert caught.value.code == faults.ERRORS[name]
    assert "\n" not in str(caught.value)
    assert str(caught.value)[-1] == "."


# Reading a GPU


@pytest.mark.parametrize("name", GPU)
def test_a_gpu_that_answers_with_a_code_is_unhealthy_or_unknown_and_hides_no_other(tmp_path: Path, name: str) -> None:
    path = build(tmp_path, gpus=2)
    node = MigNode(tmp_path)
    faults.fail(path, "nvmlDeviceGetMemoryInfo", faults.ERRORS[name], gpu=1)
    sound, other = at_first_sight(node.nvml.gpus())
    assert (health(sound)[0], sound.unread) == (HealthState.HEALTHY, ())
    if name in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION", "ARGUMENT_VERSION_MISMATCH"):
        assert health(other)[0] is HealthState.HEALTHY, "that says nothing of the GPU itself"
    elif name in ("GPU_IS_LOST", "RESET_REQUIRED", "NOT_FOUND"):
        assert health(other)[0] is HealthState.UNHEALTHY
    else:
        assert health(other)[0] is HealthState.UNKNOWN
    [lacking] = other.unread
    assert lacking.name == "memory"
    assert CODES[name].told in lacking.message
    assert CODES[name].told in told(other) or health(other)[0] is HealthState.HEALTHY


# Reading its possible divisions


@codes
def test_a_table_ends_at_one_code_leaves_out_what_has_another_and_is_not_believed_after_any_else(
    tmp_path: Path, name: str
) -> None:
    build(tmp_path)
    nvml = Nvml(SimulatedNvml(tmp_path / "gpus.json"))
    nvml.open()
    node = MigNode(tmp_path)
    whole = node.edge.board(node.uuid)
    assert whole
    faults.fail(node.path, "nvmlDeviceGetGpuInstanceProfileInfo", faults.ERRORS[name], times=1)
    node.nvml.close()
    node.nvml.open()
    if name == "INVALID_ARGUMENT":
        assert node.edge.board(node.uuid) is None
    elif name in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND"):
        found = node.edge.board(node.uuid)
        assert found
        assert [one.id for one in found.profiles] == [one.id for one in whole.profiles[1:]]
    else:
        with pytest.raises(CODES[name].kind):
            node.edge.board(node.uuid)
        assert node.edge.board(node.uuid) == whole, "a table that was cut off is read again"


# Listing instances


@codes
def test_a_gpu_that_cannot_be_listed_is_dirty_says_why_and_is_clean_after_the_next_list(
    node: MigNode, name: str
) -> None:
    node.prepare(ONE)
    faults.fail(node.path, "nvmlDeviceGetGpuInstances", faults.ERRORS[name])
    if name in DRIVER:
        with pytest.raises(CODES[name].kind):
            node.scan()
        return
    node.scan()
    if name == "NOT_SUPPORTED":
        assert not dirty(node), "so NVML says that it has no such profile now"
        return
    assert dirty(node)
    assert CODES[name].told in node.mig.divisions[node.uuid].message
    assert node.uses() == [(9, 4, Use.CLAIM)], "what was seen last is kept"
    faults.stop_failing(node.path)
    node.scan()
    assert not dirty(node)


# Creating an instance


@codes
def test_a_creation_that_is_refused_is_explained_tried_once_and_looked_at_again(tmp_path: Path, name: str) -> None:
    node, called = watched(tmp_path)
    faults.fail(node.path, CREATE, faults.ERRORS[name], times=1)
    with pytest.raises(PrepareError, match=re.escape(CODES[name].told)):
        node.prepare(ONE)
    assert called.count(CREATE) == 1, "asking again does not help"
    assert "nvmlDeviceGetGpuInstances" in called[called.index(CREATE) :], "what is there is read again"
    assert (node.real(), dict(node.record.claims), dict(node.record.instances)) == ([], {}, {})
    assert not dirty(node)
    node.prepare(ONE)
    assert node.real() == [(9, 4, 1)]


@pytest.mark.parametrize("name", sorted(name for name, code in CODES.items() if not code.refusal))
def test_a_creation_whose_answer_is_no_refusal_is_undone_where_it_was_made(node: MigNode, name: str) -> None:
    faults.fail(node.path, CREATE, faults.ERRORS[name], times=1, effect="done")
    with pytest.raises(PrepareError, match=re.escape(CODES[name].told)):
        node.prepare(ONE)
    assert (node.real(), dict(node.record.instances), dirty(node)) == ([], {}, False)


# Destroying an instance


@codes
def test_a_destroy_that_fails_keeps_the_claim_and_the_gpu_dirty_unless_it_is_gone_already(
    tmp_path: Path, name: str
) -> None:
    build(tmp_path)
    node = MigNode(tmp_path, holder="process 4711 (train)")
    node.prepare(ONE)
    if name == "NOT_FOUND":
        faults.fail(node.path, "nvmlGpuInstanceDestroy", faults.ERRORS[name], times=1, effect="done")
        node.unprepare(ONE)
        assert (node.real(), dict(node.record.claims), dirty(node)) == ([], {}, False)
        return
    faults.fail(node.path, "nvmlGpuInstanceDestroy", faults.ERRORS[name])
    told = "in use by process 4711 (train)" if name == "IN_USE" else CODES[name].told
    with pytest.raises(InstanceHeld, match=re.escape(told)):
        node.unprepare(ONE)
    assert (node.real(), node.uses()) == ([(9, 4, 0)], [(9, 4, Use.ORPHAN)])
    assert dirty(node)
    faults.stop_failing(node.path)
    node.unprepare(ONE)
    assert (node.real(), dict(node.record.claims), dirty(node)) == ([], {}, False)


def test_an_instance_that_nvml_says_is_gone_and_still_lists_is_not_blamed_on_anybody(node: MigNode) -> None:
    node.prepare(ONE)
    faults.fail(node.path, "nvmlGpuInstanceDestroy", faults.ERRORS["NOT_FOUND"])
    with pytest.raises(InstanceHeld, match=r"3g.40gb at 4 is still listed by NVML, which reported it destroyed"):
        node.unprepare(ONE)
    assert dirty(node)
    with pytest.raises(PrepareError, match="no claim uses it any more, but it is still listed by NVML"):
        node.prepare(a_mig_claim("small", *names([(19, 5)])))
    faults.stop_failing(node.path)
    node.unprepare(ONE)
    assert (node.real(), dirty(node)) == ([], False)


def test_a_creation_that_the_mode_or_the_board_does_not_allow_says_so(node: MigNode) -> None:
    faults.fail(node.path, CREATE, faults.ERRORS["NOT_SUPPORTED"], times=1)
    with pytest.raises(PrepareError, match="now: its MIG mode is off, or its board has no such profile"):
        node.prepare(ONE)


# Changing the MIG mode


@pytest.mark.parametrize("name", ["IN_USE", "NO_PERMISSION", "GPU_IS_LOST", "UNKNOWN"])
def test_a_mode_that_does_not_come_about_is_explained(tmp_path: Path, name: str) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path, holder="process 4711 (train)")
    faults.fail(node.path, "nvmlDeviceSetMigMode", faults.ERRORS[name])
    with pytest.raises(PrepareError, match=re.escape(CODES[name].told)) as caught:
        node.prepare(ONE)
    assert ("in use by process 4711 (train)" in str(caught.value)) is (name == "IN_USE")
    assert (node.hardware().mig_current, dict(node.record.claims)) == (0, {})


# Waiting for events


@codes
def test_waiting_ends_quietly_when_nothing_happened_and_is_refused_else(node: MigNode, name: str) -> None:
    faults.fail(node.path, "nvmlEventSetWait_v2", faults.ERRORS[name])
    if name == "TIMEOUT":
        assert list(node.nvml.wait_events(0)) == []
    else:
        with pytest.raises(CODES[name].kind):
            list(node.nvml.wait_events(0))


# Losing the driver


@pytest.mark.parametrize("name", DRIVER)
async def test_a_driver_that_is_gone_is_opened_again_with_fresh_handles(tmp_path: Path, name: str) -> None:
    path = build(tmp_path)
    nvml = Nvml(SimulatedNvml(path))
    views: asyncio.Queue[HardwareView] = asyncio.Queue()

    def plain(gpus: Sequence[Gpu]) -> Sequence[Gpu]:
        return gpus

    async def unnamed(view: HardwareView) -> HardwareView:
        return view

    hardware = HardwareMonitor(
        nvml,
        SysfsPcieRoots(tmp_path),
        faults=FaultRecord(
            tmp_path / "faults.json", Files(), boot_id="", driver_load=lambda: "", now=SystemClock().now
        ),
        divided=plain,
        named=unnamed,
        clock=SystemClock(),
        rescan_s=0.01,
        retry_s=0.01,
        event_wait_s=0.0,
    )
    hardware.subscribe(views.put_nowait)

    async def until(wanted: Callable[[HardwareView], bool]) -> HardwareView:
        while not wanted(view := await views.get()):
            pass
        return view

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(hardware.run())
        first = await until(lambda view: not view.fault)
        before = nvml.handle(first.gpus[0].uuid)
        faults.break_driver(path, faults.ERRORS[name])
        broken = await until(lambda view: bool(view.fault))
        assert CODES[name].told in broken.fault
        assert broken.gpus == first.gpus, "what is known stays"
        faults.reload_driver(path)
        again = await until(lambda view: not view.fault)
        assert again.gpus[0].uuid == first.gpus[0].uuid
        assert nvml.sessions > 1
        assert nvml.handle(first.gpus[0].uuid) is not before
        running.cancel()
