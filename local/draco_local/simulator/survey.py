"""Write NVML's answers about a GPU as JSON, with which simulated NVML is compared.

Only asks: it changes no setting and makes no instance. What identifies a board among others of its kind (UUID, serial number,
revision), and its place in the node, is masked. It needs nothing but pynvml, so this file alone runs on any node with a GPU,
preferably an idle one:

    python survey.py > tests/unit/simulator/surveys/h100-80gb.json
"""

import ctypes
import json
import sys
from collections.abc import Mapping
from typing import Any

import pynvml

LINKS = 19
"""One more than any current board has."""
MASKED = "masked"
FIELD_VALUES = "nvmlDeviceGetFieldValues"
_MASKS = frozenset({
    "nvmlDeviceGetIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetSerial", "nvmlDeviceGetBoardId", "nvmlDeviceGetBoardPartNumber",
    "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetCpuAffinity", "nvmlDeviceGetCpuAffinityWithinScope",
})  # fmt: skip
_MASKED_FIELDS = frozenset({
    "domain", "bus", "device", "busId", "busIdLegacy", "clusterUuid", "cliqueId", "pid", "_reserved",
})  # fmt: skip

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's union of values, by nvmlValueType_t."""


class Survey:
    """Asks `library`, pynvml or what stands in for it, about one of its GPUs."""

    def __init__(self, library: Any, index: int = 0) -> None:
        self.answers: dict[str, Any] = {}
        self._library = library
        self._index = index

    def run(self) -> dict[str, Any]:
        """The answers, by what was asked: an error as {"error": its code}."""
        self._ask("nvmlInit")
        try:
            self._system()
            handle = self._library.nvmlDeviceGetHandleByIndex(self._index)
            self._lookups(handle)
            self._plain(handle)
            self._memory(handle)
            self._health(handle)
            self._fields(handle)
            self._links(handle)
            self._mig(handle)
            self._events(handle)
        finally:
            self._library.nvmlShutdown()
        return self.answers

    def _system(self) -> None:
        for name in ("DriverVersion", "NVMLVersion", "CudaDriverVersion", "CudaDriverVersion_v2"):
            self._ask(f"nvmlSystemGet{name}")
        for code in (*range(31), 999):
            self._ask("nvmlErrorString", code)

    def _lookups(self, handle: Any) -> None:
        count = self._library.nvmlDeviceGetCount()
        self._ask("nvmlDeviceGetHandleByIndex", self._index, label="own")
        self._ask("nvmlDeviceGetHandleByIndex", count, label="count")
        uuid = self._library.nvmlDeviceGetUUID(handle)
        address = self._library.nvmlDeviceGetPciInfo(handle).busId
        domain, bus, rest = (address.decode() if isinstance(address, bytes) else address).split(":")
        nobody = "00000000-0000-0000-0000-000000000000"
        for label, text in {
            "own": uuid,
            "own, capital letters": uuid.upper(),
            "own, without GPU-": uuid.removeprefix("GPU-"),
            "another": f"GPU-{nobody}",
            "another MIG device": f"MIG-{nobody}",
            "no UUID": "nothing",
            "empty": "",
        }.items():
            self._ask("nvmlDeviceGetHandleByUUID", text, label=label)
        for label, text in {"another": "1", "empty": ""}.items():
            self._ask("nvmlDeviceGetHandleBySerial", text, label=label)
        for label, text in {
            "own, eight digits": f"{domain}:{bus}:{rest}",
            "own, four digits": f"{domain[-4:]}:{bus}:{rest}",
            "own, small letters": f"{domain}:{bus}:{rest}".lower(),
            "own, without domain": f"{bus}:{rest}",
            "own, without function": f"{domain}:{bus}:{rest.split('.')[0]}",
            "another": "00000000:FE:1F.0",
            "no address": "nothing",
            "empty": "",
        }.items():
            self._ask("nvmlDeviceGetHandleByPciBusId", text, label=label)

    def _plain(self, handle: Any) -> None:
        for name in (
            "Index", "UUID", "MinorNumber", "Name", "Brand", "Architecture", "CudaComputeCapability", "Serial",
            "BoardPartNumber", "BoardId", "MultiGpuBoard", "PciInfo", "PciInfo_v3", "NumaNodeId", "AddressingMode",
            "VirtualizationMode", "PersistenceMode", "ComputeMode", "PerformanceState", "UtilizationRates", "PowerUsage",
            "PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit", "CurrPcieLinkGeneration",
            "MaxPcieLinkGeneration", "GpuMaxPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth",
            "ComputeRunningProcesses", "ComputeRunningProcesses_v3", "GraphicsRunningProcesses",
            "GraphicsRunningProcesses_v3", "MPSComputeRunningProcesses", "MPSComputeRunningProcesses_v3",
        ):  # fmt: skip
            self._ask(f"nvmlDeviceGet{name}", handle)
        extended = pynvml.nvmlPciInfoExt_v1_t()
        extended.version = pynvml.nvmlPciInfoExt_v1
        self._ask("nvmlDeviceGetPciInfoExt", handle, ctypes.byref(extended), into=extended)
        self._ask("nvmlDeviceGetMemoryAffinity", handle, 16, 0)
        self._ask("nvmlDeviceGetCpuAffinity", handle, 16)
        self._ask("nvmlDeviceOnSameBoard", handle, handle)
        self._ask("nvmlDeviceGetTopologyCommonAncestor", handle, handle)
        self._ask("nvmlDeviceGetP2PStatus", handle, handle, 0)

    def _memory(self, handle: Any) -> None:
        self._ask("nvmlDeviceGetMemoryInfo", handle)
        self._ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2, label="version 2")
        self._ask("nvmlDeviceGetBAR1MemoryInfo", handle)

    def _health(self, handle: Any) -> None:
        for name in ("EccMode", "CurrentEccMode", "PendingEccMode", "RetiredPagesPendingStatus", "RemappedRows"):
            self._ask(f"nvmlDeviceGet{name}", handle)
        self._ask("nvmlDeviceGetRowRemapperHistogram", handle)
        for kind in range(3):
            for counter in range(3):
                self._ask("nvmlDeviceGetTotalEccErrors", handle, kind, counter)
        for cause in range(3):
            self._ask("nvmlDeviceGetRetiredPages", handle, cause)
            self._ask("nvmlDeviceGetRetiredPages_v2", handle, cause)
        rows = pynvml.c_nvmlRemappedRowsInfo_v2_t()
        self._ask("nvmlDeviceGetRemappedRows_v2", handle, ctypes.byref(rows), into=rows)
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        status.version = pynvml.nvmlEccSramErrorStatus_v1
        self._ask("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status), into=status)
        for sensor in range(2):
            self._ask("nvmlDeviceGetTemperature", handle, sensor)
        for threshold in range(pynvml.NVML_TEMPERATURE_THRESHOLD_COUNT + 1):
            self._ask("nvmlDeviceGetTemperatureThreshold", handle, threshold)
        self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        for clock in range(5):
            self._ask("nvmlDeviceGetMaxClockInfo", handle, clock)
            self._ask("nvmlDeviceGetClockInfo", handle, clock)

    def _fields(self, handle: Any) -> None:
        links = [(pynvml.NVML_FI_DEV_NVLINK_GET_STATE, link) for link in range(LINKS)]
        for field in range(1, pynvml.NVML_FI_MAX):
            self.answers[f"{FIELD_VALUES} {field}"] = self._field(handle, field)
        for field, scope in links:
            self.answers[f"{FIELD_VALUES} {field} of {scope}"] = self._field(handle, (field, scope))

    def _field(self, handle: Any, wanted: Any) -> Any:
        try:
            value = self._library.nvmlDeviceGetFieldValues(handle, [wanted])[0]
        except pynvml.NVMLError as error:
            return {"error": int(error.value)}
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            return {"returned": int(value.nvmlReturn)}
        kind = int(value.valueType)
        return {"type": kind, "value": getattr(value.value, _MEMBERS[kind])}

    def _links(self, handle: Any) -> None:
        for link in range(LINKS):
            for name in ("State", "Version", "RemoteDeviceType", "RemotePciInfo"):
                self._ask(f"nvmlDeviceGetNvLink{name}", handle, link)
            for capability in range(7):
                self._ask("nvmlDeviceGetNvLinkCapability", handle, link, capability)
            for counter in range(5):
                self._ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
        unversioned, versioned = pynvml.c_nvmlGpuFabricInfo_t(), pynvml.c_nvmlGpuFabricInfoV_t()
        self._ask("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(unversioned), into=unversioned)
        self._ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(versioned), into=versioned)

    def _mig(self, handle: Any) -> None:
        self._ask("nvmlDeviceGetMigMode", handle)
        self._ask("nvmlDeviceGetMaxMigDeviceCount", handle)
        self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, 0)
        self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, 99)
        self._ask("nvmlDeviceIsMigDeviceHandle", handle)
        self._ask("nvmlDeviceGetGpuInstanceId", handle)
        self._ask("nvmlDeviceGetComputeInstanceId", handle)
        self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        self._ask("nvmlDeviceGetAttributes", handle)
        self._ask("nvmlDeviceGetGpuInstanceById", handle, 1)
        ids = set()
        for profile in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT + 1):
            for version in (1, 2):
                label = f"{profile}, version {version}"
                answer = self._ask("nvmlDeviceGetGpuInstanceProfileInfo", handle, profile, label=label, version=version)
                if isinstance(answer, dict) and "id" in answer:
                    ids.add(answer["id"])
        for profile_id in (*sorted(ids), 77):
            self._ask("nvmlDeviceGetGpuInstanceProfileInfoById", handle, profile_id)
            self._ask("nvmlDeviceGetGpuInstanceRemainingCapacity", handle, profile_id)
            for name, kind in (
                ("nvmlDeviceGetGpuInstancePossiblePlacements", pynvml.c_nvmlGpuInstancePlacement_t),
                ("nvmlDeviceGetGpuInstances", pynvml.c_nvmlGpuInstance_t),
            ):
                array, count = (kind * 64)(), ctypes.c_uint(64)
                key = f"{name} {profile_id}"
                try:
                    getattr(self._library, name)(handle, profile_id, array, ctypes.byref(count))
                except pynvml.NVMLError as error:
                    self.answers[key] = {"error": int(error.value)}
                else:
                    self.answers[key] = [plain(each) for each in array[: count.value]]

    def _events(self, handle: Any) -> None:
        self._ask("nvmlDeviceGetSupportedEventTypes", handle)
        events = self._library.nvmlEventSetCreate()
        try:
            types = self._library.nvmlDeviceGetSupportedEventTypes(handle)
            self._ask("nvmlDeviceRegisterEvents", handle, types, events, label="supported")
            self._ask("nvmlEventSetWait_v2", events, 0, label="no time")
        finally:
            self._library.nvmlEventSetFree(events)

    def _ask(self, function: str, *args: Any, label: str = "", into: Any = None, **options: Any) -> Any:
        numbers = [str(each) for each in args if isinstance(each, int) and not isinstance(each, bool)]
        key = " ".join([function, label or ", ".join(numbers)]).strip()
        try:
            answer = getattr(self._library, function)(*args, **options)
        except pynvml.NVMLError as error:
            found: Any = {"error": int(error.value)}
        except (ctypes.ArgumentError, AttributeError, TypeError, UnicodeDecodeError) as error:
            found = {"raised": type(error).__name__}
        else:
            found = MASKED if function in _MASKS else plain(answer if into is None else into)
        self.answers[key] = found
        return found


def plain(answer: Any) -> Any:
    """An answer of pynvml's as a JSON value."""
    if answer is None or isinstance(answer, str | int | float):
        return answer
    if isinstance(answer, ctypes.Array | list | tuple):
        return [plain(each) for each in answer]
    if hasattr(answer, "contents"):
        return "handle"
    return answer.value if hasattr(answer, "value") else _masked(_fields(answer))


def _fields(answer: Any) -> dict[str, Any]:
    if isinstance(answer, ctypes.Structure):
        names = [each[0] for kind in reversed(type(answer).__mro__) for each in vars(kind).get("_fields_", ())]
        return {name: getattr(answer, name) for name in names}
    return dict(answer if isinstance(answer, dict) else vars(answer))


def _masked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Mask what identifies one board; bytes are names."""
    fields = {name: value.decode() if isinstance(value, bytes) else value for name, value in fields.items()}
    return {name: MASKED if name in _MASKED_FIELDS else plain(value) for name, value in fields.items()}


def lines(answers: Mapping[str, Any]) -> str:
    """The survey as JSON, one answer a line."""
    each = (f"{json.dumps(name)}: {json.dumps(answer, sort_keys=True)}" for name, answer in sorted(answers.items()))
    return "{\n" + ",\n".join(each) + "\n}\n"


if __name__ == "__main__":
    sys.stdout.write(lines(Survey(pynvml).run()))
