"""The simulator matches pynvml: the same functions, the same signatures, the same types of answers."""

import ctypes
import inspect
import re
from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco_local.simulator.gpus.drivers import RELEASES
from draco_local.simulator.gpus.state import create, mutate
from draco_local.simulator.nvml.library import SimulatedNvml
from tests.unit.simulator.calls import arguments


def _simulated_names() -> list[str]:
    return [name for name in dir(SimulatedNvml(Path("unused"))) if name.startswith("nvml")]


NAMES = _simulated_names()
NEWEST = RELEASES["615"]
NEEDED = re.findall(
    r"\w+",
    """
nvmlInit nvmlInitWithFlags nvmlShutdown nvmlErrorString nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion
nvmlSystemGetCudaDriverVersion nvmlSystemGetCudaDriverVersion_v2 nvmlDeviceGetCount nvmlDeviceGetHandleByIndex
nvmlDeviceGetHandleByUUID nvmlDeviceGetHandleByPciBusId nvmlDeviceGetHandleBySerial nvmlDeviceGetIndex
nvmlDeviceGetUUID nvmlDeviceGetName nvmlDeviceGetBrand nvmlDeviceGetArchitecture nvmlDeviceGetCudaComputeCapability
nvmlDeviceGetMemoryInfo nvmlDeviceGetMinorNumber nvmlDeviceGetSerial nvmlDeviceGetBoardPartNumber nvmlDeviceGetPciInfo
nvmlDeviceGetPciInfo_v3 nvmlDeviceGetPciInfoExt nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetMaxPcieLinkGeneration
nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetNumaNodeId nvmlDeviceGetCpuAffinity
nvmlDeviceGetMemoryAffinity nvmlDeviceGetVirtualizationMode nvmlDeviceGetPersistenceMode nvmlDeviceGetEccMode
nvmlDeviceGetTotalEccErrors nvmlDeviceGetSramEccErrorStatus nvmlDeviceGetRetiredPages nvmlDeviceGetRemappedRows
nvmlDeviceGetRowRemapperHistogram nvmlDeviceGetFieldValues nvmlDeviceGetTemperature nvmlDeviceGetPowerUsage
nvmlDeviceGetPowerManagementLimit nvmlDeviceGetClockInfo nvmlDeviceGetMaxClockInfo nvmlDeviceGetUtilizationRates
nvmlDeviceGetComputeMode nvmlDeviceSetComputeMode
nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetProcessUtilization nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkRemotePciInfo
nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkVersion nvmlDeviceGetTopologyCommonAncestor nvmlDeviceGetP2PStatus
nvmlDeviceGetGpuFabricInfo nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetMigMode nvmlDeviceSetMigMode
nvmlDeviceGetGpuInstanceProfileInfo nvmlDeviceGetGpuInstanceProfileInfoById nvmlDeviceGetGpuInstancePossiblePlacements
nvmlDeviceGetGpuInstanceRemainingCapacity nvmlDeviceGetGpuInstances nvmlDeviceGetMaxMigDeviceCount
nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceIsMigDeviceHandle nvmlDeviceGetGpuInstanceId nvmlDeviceGetComputeInstanceId
nvmlDeviceGetDeviceHandleFromMigDeviceHandle nvmlDeviceGetAttributes_v2 nvmlDeviceCreateGpuInstance
nvmlDeviceCreateGpuInstanceWithPlacement nvmlDeviceGetGpuInstanceById nvmlGpuInstanceGetInfo nvmlGpuInstanceDestroy
nvmlGpuInstanceGetComputeInstanceProfileInfo nvmlGpuInstanceGetComputeInstanceRemainingCapacity
nvmlGpuInstanceGetComputeInstancePossiblePlacements nvmlGpuInstanceCreateComputeInstance
nvmlGpuInstanceCreateComputeInstanceWithPlacement nvmlGpuInstanceGetComputeInstances
nvmlGpuInstanceGetComputeInstanceById nvmlComputeInstanceGetInfo nvmlComputeInstanceGetInfo_v2
nvmlComputeInstanceDestroy nvmlDeviceGetComputeRunningProcesses_v3 nvmlEventSetCreate nvmlDeviceRegisterEvents
nvmlEventSetWait_v2 nvmlEventSetFree
""",
)


@pytest.mark.parametrize("name", NEEDED)
def test_every_function_the_product_may_need_is_simulated(name: str) -> None:
    assert name in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_simulated_function_has_pynvmls_signature(name: str) -> None:
    ours = inspect.signature(getattr(SimulatedNvml(Path("unused")), name)).parameters
    theirs = inspect.signature(getattr(pynvml, name)).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_what_pynvml_has_and_the_simulator_has_not_is_missing_from_the_library() -> None:
    library = SimulatedNvml(Path("unused"))
    for name in ("nvmlDeviceSetFanSpeed_v2", "nvmlVgpuInstanceGetGpuInstanceId", "nvmlDeviceGetFanSpeed"):
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            getattr(library, name)(None, None)


def test_what_pynvml_does_not_have_is_no_attribute() -> None:
    library = SimulatedNvml(Path("unused"))
    assert not hasattr(library, "nvmlDeviceGetCount_v2")  # a C name, not one of pynvml's
    assert not hasattr(library, "_nvmlCheckReturn")


class Answering:
    """A C library in which every function succeeds and writes nothing, so that pynvml shows its return types."""

    def __getattr__(self, _name: str) -> Any:
        class Function:
            def __call__(self, *_args: object) -> Any:
                return b"text" if getattr(self, "restype", None) is ctypes.c_char_p else 0

        return Function()


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", Answering())
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)


def _shape(value: object) -> object:
    """The type of a value; for sequences also the types inside, and for C arrays the element type and the length."""
    if isinstance(value, list | tuple):
        return (type(value), [_shape(item) for item in value])
    if isinstance(value, ctypes.Array):
        return (value._type_, len(value))
    return type(value)


@pytest.mark.parametrize(("board", "mig"), [("H100-80GB", 0), ("H100-80GB", 1), ("T4", 0)])
@pytest.mark.parametrize("name", NAMES)
def test_an_answer_has_the_type_that_pynvml_returns(
    name: str, board: str, mig: int, tmp_path: Path, answering: None
) -> None:
    create(tmp_path / "state.json", board=board, gpus=2, node_name="n")
    with mutate(tmp_path / "state.json") as state:
        state.gpus[0].mig_current = state.gpus[0].mig_pending = mig
        state.driver.version = NEWEST
    library = SimulatedNvml(tmp_path / "state.json")
    library.nvmlInit()
    given = arguments(library, name).values()
    try:
        ours = getattr(library, name)(*given)
    except (
        pynvml.NVMLError_InvalidArgument,
        pynvml.NVMLError_NotFound,
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_Timeout,
    ):
        return  # refusals are tested function by function
    theirs = getattr(pynvml, name)(*given)
    assert _shape(ours) == _shape([] if ours == [] else theirs)
