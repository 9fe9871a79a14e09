"""What NVML reports about a GPU's health: one reading's signs of faults.

Owns the calls, few enough for every GPU at every reading: all field values come in one call. Decides nothing: `draco.health`
knows what a sign means, and until when. What NVML does not report is marked as such, never taken for health.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

from draco.agent.hardware import faults
from draco.agent.hardware.faults import Recovery
from draco.agent.hardware.nvml_errors import RECOVERY_ACTIONS, CallError, NotSupported, optional
from draco.health.ledger import GpuReading, LinkReading, Sign
from draco.resources.api.health import FaultFamily
from draco.resources.names import GpuUuid

THERMAL_MARGIN_C = 5
"""How far a GPU must be below its slowdown temperature for a reading to count as free of that fault."""
_ERRORS_OF_LINKS = (
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)
_FIELDS = (
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    *_ERRORS_OF_LINKS,
)
_HOT = pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
_LONG = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG

Call = Callable[..., Any]
Refused = Callable[[FaultFamily, CallError], None]


class HealthReader:
    """Reads the health of one session's GPUs. `call` raises the errors of `nvml_errors`."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._slowdown_c: dict[GpuUuid, int | None] = {}
        self._links: dict[GpuUuid, int] = {}

    def forget(self) -> None:
        """Start a new session: the driver may be another one."""
        self._slowdown_c, self._links = {}, {}

    def read(
        self, uuid: GpuUuid, handle: Any, *, divided: bool, refused: Refused = lambda _family, _why: None
    ) -> GpuReading:
        """Read one GPU. Raises CallError if an answer says that the GPU itself fails.

        `refused` is called with each family that cannot be read now, and why, unless the board lacks it.
        """
        signs: list[Sign] = []
        unasked: set[FaultFamily] = set()
        hidden: set[FaultFamily] = set()
        try:
            values = self._values(uuid, handle)
        except CallError as error:
            if error.blames_gpu:
                raise
            for family in (FaultFamily.RECOVERY, FaultFamily.ECC, FaultFamily.NVLINK):
                refused(family, error)
            values = {}
        action = values.get(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        if action is None:  # an older driver does not know of it
            lacks = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION in values
            (hidden if lacks else unasked).add(FaultFamily.RECOVERY)
        elif action != pynvml.NVML_GPU_RECOVERY_ACTION_NONE:
            unnamed = Sign(Recovery.UNKNOWN.value, f"The GPU needs recovery action {action}.")
            signs.append(RECOVERY_ACTIONS.get(action, unnamed))
        errors = values.get(pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL)
        if errors is None:  # a divided GPU does not report them, nor one whose ECC is off
            lacks = divided or pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL in values
            (hidden if lacks else unasked).add(FaultFamily.ECC)
        found = {
            FaultFamily.ECC: self._ecc(errors, handle, signs, unasked),
            FaultFamily.ROW_REMAP: self._rows(handle, signs, hidden if divided else unasked),
            FaultFamily.THERMAL: self._thermal(uuid, handle, signs, unasked),
        }
        for family, why in found.items():
            if why is not None and family not in hidden:
                refused(family, why)
        links = None
        if divided:  # partitions have no NVLinks, so their state says nothing
            hidden.add(FaultFamily.NVLINK)
        elif not self._links.get(uuid):
            (hidden if uuid in self._links else unasked).add(FaultFamily.NVLINK)
        else:
            links = self._link_reading(uuid, values)
            if links is None:
                unasked.add(FaultFamily.NVLINK)
        return GpuReading(
            gpu=uuid, signs=tuple(signs), unasked=frozenset(unasked), hidden=frozenset(hidden), links=links
        )

    def _values(self, uuid: GpuUuid, handle: Any) -> dict[object, int | None]:
        """The answered field values; None is not supported. Those of links are read per link, once their number is known."""
        wanted: list[Any] = [*_FIELDS]
        if uuid in self._links:
            wanted += [(pynvml.NVML_FI_DEV_NVLINK_GET_STATE, link) for link in range(self._links[uuid])]
        else:
            wanted.append(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
        answers = optional(self._call, "nvmlDeviceGetFieldValues", handle, wanted) or ()
        found = {
            name: None if value.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED else _number(value)
            for name, value in zip(wanted, answers, strict=False)
            if value.nvmlReturn in {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_SUPPORTED}
        }
        if uuid not in self._links and pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT in found:
            number = found[pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT] or 0
            self._links[uuid] = min(number, pynvml.NVML_NVLINK_MAX_LINKS)
            return self._values(uuid, handle) if self._links[uuid] else found
        return found

    def _link_reading(self, uuid: GpuUuid, values: dict[object, int | None]) -> LinkReading | None:
        states = [values.get((pynvml.NVML_FI_DEV_NVLINK_GET_STATE, link)) for link in range(self._links[uuid])]
        if None in states:
            return None
        up = sum(1 << link for link, state in enumerate(states) if state)
        return LinkReading(up, sum(values.get(one) or 0 for one in _ERRORS_OF_LINKS))

    def _ecc(self, errors: int | None, handle: Any, signs: list[Sign], unasked: set[FaultFamily]) -> CallError | None:
        if errors:
            what = "memory error" if errors == 1 else "memory errors"
            sentence = f"{errors} {what} could not be corrected since the driver was loaded; {_AT_NEXT_RESET}."
            signs.append(Sign(faults.ECC_UNCORRECTED, sentence, errors))
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        try:
            status.version = pynvml.nvmlEccSramErrorStatus_v1
            self._call("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status))
        except CallError as error:
            _unless_faulty(error)
            if not isinstance(error, NotSupported):  # older boards have no such counters
                unasked.add(FaultFamily.ECC)
            return _unless_lacking(error)
        if status.bThresholdExceeded:
            signs.append(Sign(faults.ECC_THRESHOLD))
        return None

    def _rows(self, handle: Any, signs: list[Sign], unasked: set[FaultFamily]) -> CallError | None:
        try:
            rows = self._call("nvmlDeviceGetRemappedRows", handle)
        except CallError as error:
            _unless_faulty(error)
            unasked.add(FaultFamily.ROW_REMAP)  # a divided GPU does not report it: its last answer holds
            return _unless_lacking(error)
        if rows[2]:
            signs.append(Sign(faults.REMAP_PENDING, count=int(rows[0]) + int(rows[1])))
        if rows[3]:
            signs.append(Sign(faults.REMAP_FAILED))
        return None

    def _thermal(self, uuid: GpuUuid, handle: Any, signs: list[Sign], unasked: set[FaultFamily]) -> CallError | None:
        try:
            if uuid not in self._slowdown_c:
                limit = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
                self._slowdown_c[uuid] = optional(self._call, "nvmlDeviceGetTemperatureThreshold", handle, limit)
            slowdown = self._slowdown_c[uuid]
            celsius = int(self._call("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU))
            reasons = int(self._call("nvmlDeviceGetCurrentClocksEventReasons", handle))
        except CallError as error:
            _unless_faulty(error)
            unasked.add(FaultFamily.THERMAL)
            return _unless_lacking(error)
        if reasons & _HOT or (slowdown is not None and celsius >= slowdown):
            sentence = f"The GPU is at {celsius} °C and lowers its clocks; check its cooling."
            signs.append(Sign(faults.THERMAL_SLOWDOWN, sentence))
        elif slowdown is not None and celsius > slowdown - THERMAL_MARGIN_C:
            unasked.add(FaultFamily.THERMAL)
        return None


def _number(value: Any) -> int:
    return int(value.value.ullVal if value.valueType == _LONG else value.value.uiVal)


_AT_NEXT_RESET = "a board that contains such errors keeps working: reset the GPU at the next opportunity"


def _unless_faulty(error: CallError) -> None:
    """Raise what an answer says of the GPU itself; it outranks one unreadable family."""
    if error.fault:
        raise error


def _unless_lacking(error: CallError) -> CallError | None:
    return None if isinstance(error, NotSupported) else error
