"""Simulated NVML: errors, temperatures, power, load, and the field values that sum them up."""
# ruff: noqa: N802, N803, A002 - the names are pynvml's

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pynvml

from draco_local.simulator.gpus import drivers
from draco_local.simulator.gpus.boards import Architecture
from draco_local.simulator.gpus.state import GpuState
from draco_local.simulator.gpus.wiring import links_of
from draco_local.simulator.nvml.handles import pointed
from draco_local.simulator.nvml.session import Session, board_of, invalid_argument, not_supported

_IDLE_SHARE = 0.15  # of the power limit; what an idle GPU draws varies, nothing may depend on it


class HealthCalls:
    """What monitoring reads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def nvmlDeviceGetEccMode(self, handle: Any) -> list[int]:
        """Current and pending; on, as data centre boards are delivered."""
        self._session.gpu(handle)
        return [pynvml.NVML_FEATURE_ENABLED, pynvml.NVML_FEATURE_ENABLED]

    def nvmlDeviceGetCurrentEccMode(self, handle: Any) -> int:
        """The current mode."""
        return self.nvmlDeviceGetEccMode(handle)[0]

    def nvmlDeviceGetPendingEccMode(self, handle: Any) -> int:
        """The pending mode."""
        return self.nvmlDeviceGetEccMode(handle)[1]

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, errorType: int, counterType: int) -> int:
        """Errors of a type, since the driver was loaded or over the board's life."""
        ecc = self._session.gpu(handle).ecc
        counts = {
            (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC): ecc.corrected_volatile,
            (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC): ecc.uncorrected_volatile,
            (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC): ecc.corrected_aggregate,
            (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC): ecc.uncorrected_aggregate,
        }
        if (errorType, counterType) not in counts:
            raise invalid_argument()
        return counts[errorType, counterType]

    def nvmlDeviceGetSramEccErrorStatus(self, device: Any, status: Any) -> int:
        """SRAM counters into the caller's c_nvmlEccSramErrorStatus_v1_t; boards from Ampere on."""
        gpu = self._session.gpu(device)
        _needs(gpu, Architecture.AMPERE)
        info = pointed(status)
        if info.version != pynvml.nvmlEccSramErrorStatus_v1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        info.bThresholdExceeded = gpu.ecc.sram_threshold_exceeded
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetRetiredPages(self, device: Any, sourceFilter: int) -> list[int]:
        """Addresses of retired pages; boards from Ampere on remap rows instead."""
        return [page["address"] for page in self.nvmlDeviceGetRetiredPages_v2(device, sourceFilter)]

    def nvmlDeviceGetRetiredPages_v2(self, device: Any, sourceFilter: int) -> list[dict[str, int]]:
        """The same, with the time of each."""
        gpu = self._session.gpu(device)
        if not 0 <= sourceFilter < pynvml.NVML_PAGE_RETIREMENT_CAUSE_COUNT:
            raise invalid_argument()
        if board_of(gpu).architecture >= Architecture.AMPERE:
            raise not_supported()
        return []

    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: Any) -> int:
        """Whether a page waits for the next reboot to be retired."""
        gpu = self._session.gpu(device)
        if board_of(gpu).architecture >= Architecture.AMPERE:
            raise not_supported()
        return int(pynvml.NVML_FEATURE_DISABLED)

    def nvmlDeviceGetRemappedRows(self, device: Any) -> tuple[int, int, int, int]:
        """Correctable, uncorrectable, pending, failed; NOT_SUPPORTED while GPU instances exist."""
        rows = _remapped(self._session.gpu(device))
        return (rows.correctable, rows.uncorrectable, int(rows.pending), int(rows.failed))

    def nvmlDeviceGetRemappedRows_v2(self, device: Any, info: Any) -> int:
        """The same into the caller's c_nvmlRemappedRowsInfo_v2_t."""
        rows = _remapped(self._session.gpu(device))
        target = pointed(info)
        target.corrActiveRemaps, target.uncActiveRemaps = rows.correctable, rows.uncorrectable
        target.corrInactiveRemaps = target.uncInactiveRemaps = 0
        target.bPending, target.bfailureOccurred = rows.pending, rows.failed
        return int(pynvml.NVML_SUCCESS)

    def nvmlDeviceGetRowRemapperHistogram(self, device: Any) -> Any:
        """Memory banks by the spare rows that they have left; all have all of them until a row is remapped."""
        gpu = self._session.gpu(device)
        rows, banks = _remapped(gpu), board_of(gpu).remap_banks
        used = min(rows.uncorrectable, banks)
        histogram = pynvml.c_nvmlRowRemapperHistogramValues()
        histogram.max, histogram.high = banks - used, used
        if rows.failed:
            histogram.max, histogram.none = max(0, histogram.max - 1), 1
        return histogram

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        """GPU temperature in degrees Celsius."""
        gpu = self._session.gpu(handle)
        if sensor != pynvml.NVML_TEMPERATURE_GPU:
            raise invalid_argument()
        return gpu.temperature_c

    def nvmlDeviceGetTemperatureV(self, handle: Any, sensor: int, version: int = pynvml.nvmlTemperature_v1) -> int:
        """The same, with a version of the request."""
        if version != pynvml.nvmlTemperature_v1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        return self.nvmlDeviceGetTemperature(handle, sensor)

    def nvmlDeviceGetTemperatureThreshold(self, handle: Any, threshold: int) -> int:
        """Degrees Celsius at which the GPU slows down or stops."""
        board = board_of(self._session.gpu(handle))
        slowdown, shutdown, highest = board.thermal_limits_c
        if not 0 <= threshold < pynvml.NVML_TEMPERATURE_THRESHOLD_COUNT:
            raise invalid_argument()
        limits = {
            pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: shutdown,
            pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: slowdown,
            pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX: highest,
        }
        if board.memory_limit_c:
            limits[pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = board.memory_limit_c
        if threshold not in limits:
            raise not_supported()
        return limits[threshold]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        """Why the clocks are not higher: idle, or the temperature."""
        gpu = self._session.gpu(handle)
        hot = gpu.temperature_c >= board_of(gpu).thermal_limits_c[0]
        reasons = pynvml.nvmlClocksEventReasonGpuIdle
        return int(pynvml.nvmlClocksThrottleReasonHwThermalSlowdown if hot else reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        """The older name."""
        return self.nvmlDeviceGetCurrentClocksEventReasons(handle)

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        """Milliwatts of an idle GPU."""
        return round(board_of(self._session.gpu(handle)).power_limit_w * 1000 * _IDLE_SHARE)

    def nvmlDeviceGetPowerManagementLimit(self, handle: Any) -> int:
        """Milliwatts."""
        return board_of(self._session.gpu(handle)).power_limit_w * 1000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any) -> int:
        """Milliwatts."""
        return self.nvmlDeviceGetPowerManagementLimit(handle)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:
        """Milliwatts."""
        return self.nvmlDeviceGetPowerManagementLimit(handle)

    def nvmlDeviceGetPerformanceState(self, handle: Any) -> int:
        """P0: fastest."""
        self._session.gpu(handle)
        return 0

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, type: int) -> int:
        """Highest clock in MHz."""
        board = board_of(self._session.gpu(handle))
        graphics, memory = board.max_clocks_mhz
        if type == pynvml.NVML_CLOCK_MEM:
            return memory
        if type in (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM):
            return graphics
        if type == pynvml.NVML_CLOCK_VIDEO and board.video_clock_mhz:
            return board.video_clock_mhz
        raise not_supported() if type == pynvml.NVML_CLOCK_VIDEO else invalid_argument()

    def nvmlDeviceGetClockInfo(self, handle: Any, type: int) -> int:
        """Present clock in MHz; an idle GPU holds its memory clock and little else."""
        if type >= pynvml.NVML_CLOCK_COUNT:
            self._session.gpu(handle)
            raise not_supported()  # the highest clock of such a type is an INVALID_ARGUMENT
        highest = self.nvmlDeviceGetMaxClockInfo(handle, type)
        return highest if type == pynvml.NVML_CLOCK_MEM else min(345, highest)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        """Percent of the last period; NOT_SUPPORTED with MIG on."""
        gpu = self._session.gpu(handle)
        if gpu.mig_current:
            raise not_supported()
        busy = sum(each.utilization for each in gpu.processes if each.listed)
        return pynvml.c_nvmlUtilization_t(gpu=min(100, busy))

    def nvmlDeviceGetPersistenceMode(self, handle: Any) -> int:
        """On, as nvidia-persistenced leaves it."""
        self._session.gpu(handle)
        return int(pynvml.NVML_FEATURE_ENABLED)

    def nvmlDeviceGetFieldValues(self, handle: Any, fieldIds: list[Any]) -> Any:
        """Several values in one call; each carries its own return code."""
        gpu = self._session.gpu(handle)
        values = (pynvml.c_nvmlFieldValue_t * len(fieldIds))()
        for value, wanted in zip(values, fieldIds, strict=True):
            try:
                value.fieldId, value.scopeId = wanted
            except TypeError:
                value.fieldId = wanted
            read = _read_of(value.fieldId, value.scopeId)
            if read is None or drivers.FIELDS.get(value.fieldId, 0) > self._session.release():
                value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
                continue
            try:
                number, value.valueType = read(gpu), _field_type(value.fieldId)
            except pynvml.NVMLError as error:
                value.nvmlReturn = error.value
                continue
            if value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
                value.value.ullVal = number
            else:
                value.value.uiVal = number
        return values


def _read_of(field: int, scope: int) -> Callable[[GpuState], int] | None:
    """The function that reads a field; for a few fields `scope` selects the part."""
    if field == pynvml.NVML_FI_DEV_NVLINK_GET_STATE:
        return lambda gpu: _link_state(gpu, scope)
    return FIELDS.get(field)


def _link_state(gpu: GpuState, link: int) -> int:
    if not 0 <= link < _link_count(gpu):
        raise invalid_argument()
    down = link in gpu.links and gpu.links[link].down
    return int(pynvml.NVML_FEATURE_DISABLED if down else pynvml.NVML_FEATURE_ENABLED)


def _uncorrected(gpu: GpuState) -> int:
    if gpu.mig_current:
        raise not_supported()  # the documentation of nvmlDeviceGetMemoryErrorCounter says so of volatile counters
    return gpu.ecc.uncorrected_volatile


def _remapped(gpu: GpuState) -> Any:
    _needs(gpu, Architecture.AMPERE)
    if gpu.instances:
        raise not_supported()  # NVML cannot read it while GPU instances exist
    return gpu.remapped


def _needs(gpu: GpuState, oldest: Architecture) -> None:
    if board_of(gpu).architecture < oldest:
        raise not_supported()


def _link_count(gpu: GpuState) -> int:
    """NOT_SUPPORTED without links: observed where they are off, and estimated for boards that have none."""
    if not links_of(gpu):
        raise not_supported()
    return links_of(gpu)


def _of_links(gpu: GpuState, kind: str) -> int:
    _link_count(gpu)
    return sum(getattr(faults, kind) for faults in gpu.links.values())


def _mig_query_capable(gpu: GpuState) -> int:
    """Whether profiles can be read with MIG off. H100 and H200 say yes; for the other boards with MIG it is estimated."""
    return int(board_of(gpu).mig_capable)


_LONG_FIELDS = frozenset(
    {
        pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
        pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
        pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
        pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        pynvml.NVML_FI_DEV_REMAPPED_COR,
        pynvml.NVML_FI_DEV_REMAPPED_UNC,
        pynvml.NVML_FI_DEV_REMAPPED_PENDING,
        pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    }
)


def _field_type(field: int) -> int:
    long = field in _LONG_FIELDS
    return int(pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG if long else pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)


FIELDS: Mapping[int, Callable[[GpuState], int]] = MappingProxyType(
    {
        pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: lambda gpu: gpu.ecc.corrected_volatile,
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: _uncorrected,
        pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL: lambda gpu: gpu.ecc.corrected_aggregate,
        pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL: lambda gpu: gpu.ecc.uncorrected_aggregate,
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT: _link_count,
        pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: lambda gpu: _of_links(gpu, "crc"),
        pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: lambda gpu: _of_links(gpu, "replay"),
        pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: lambda gpu: _of_links(gpu, "recovery"),
        pynvml.NVML_FI_DEV_REMAPPED_COR: lambda gpu: int(_remapped(gpu).correctable),
        pynvml.NVML_FI_DEV_REMAPPED_UNC: lambda gpu: int(_remapped(gpu).uncorrectable),
        pynvml.NVML_FI_DEV_REMAPPED_PENDING: lambda gpu: int(_remapped(gpu).pending),
        pynvml.NVML_FI_DEV_REMAPPED_FAILURE: lambda gpu: int(_remapped(gpu).failed),
        pynvml.NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE: _mig_query_capable,
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: lambda gpu: gpu.recovery_action,
    }
)
