"""How a taint of a device ends: who lifts it, when, or what to do.

Owns the texts for Draco's own taints. Nobody lifts these by hand, because the agent or the operator sets them again; and
tolerating one gives a device that cannot be used.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from draco.allocation.ownership.claims import is_operators
from draco.resources.api.claims import DeviceClass
from draco.resources.api.health import is_of_fact, is_of_fault
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import (
    TAINT_AGENT_LOST,
    TAINT_DEVICE_PLUGIN,
    TAINT_FOREIGN_INSTANCE,
    TAINT_MAINTENANCE,
    TAINT_OPERATOR_ALLOCATED,
    TAINT_UNSETTLED,
    UNSETTLED_FABRIC,
    UNSETTLED_MIG_MODE,
    UNSETTLED_SHARING,
    UNSETTLED_WITHDRAWN,
)
from draco.resources.texts import agreeing, are

_TURN_OFF: Final = (
    "by turning its MIG mode off (`nvidia-smi -i UUID -mig 0`) and resetting it, or by a MigPolicy that divides it"
)
_BY: Final[Mapping[str, str]] = {
    TAINT_FOREIGN_INSTANCE: "by removing the GPU instance there, which Draco did not make",
    TAINT_DEVICE_PLUGIN: "by removing the device plugin that gives it out, too, from its node",
}
"""What lifts the taint."""
_WHEN: Final[Mapping[str, str]] = {
    TAINT_MAINTENANCE: "Draco does when its DeviceMaintenance is over, and draco maintain status says what that waits for",
    TAINT_AGENT_LOST: "Draco does when the agent of its node is back; see the agent's pod there",
}
"""Who lifts the taint, and when."""
_SETTLED: Final[Mapping[str, str]] = {
    UNSETTLED_FABRIC: "its agent does as soon as the GPU has joined its NVLink fabric; if that takes minutes, see the fabric "
    "manager on its node",
    UNSETTLED_WITHDRAWN: "within seconds its agent publishes what its MigPolicy or SharingPolicy, or none, wants instead",
    UNSETTLED_SHARING: "Draco does when its claims are gone, and it is shared as its SharingPolicy, or none, asks",
}
"""The same, by the value of the taint of a GPU that is not settled."""


def lifting(
    taints: Sequence[DeviceTaint],
    *,
    named: str = "",
    devices: str = "",
    classes: Mapping[str, DeviceClass] | None = None,
    of_pod: Collection[str] = (),
) -> str:
    """What to do about taints of devices, as an imperative; the first taint decides.

    `named` and `devices` are empty if the sentence before has them. Without `classes`, the claim has its devices already, so
    nothing can be asked for instead. `of_pod`: the keys that the pod tolerates, "" for all, which is for taints of nodes.
    """
    first, count = taints[0], len(taints)
    what = " ".join(filter(None, (agreeing(count, "the taint", "the taints"), named)))
    where = f" from {devices}" if devices else ""
    if when := _when(first):
        return f"wait until {what} {are(count)} lifted{where}: {when}"
    return f"lift {what}{where}{_how(first, classes, of_pod)}"


def _when(taint: DeviceTaint) -> str:
    """Who lifts the taint, and when; "" if that takes somebody's work."""
    if taint.key == TAINT_UNSETTLED and taint.value in {*_SETTLED, UNSETTLED_MIG_MODE}:
        return _SETTLED.get(taint.value, "")
    if taint.key in {*_WHEN, *_BY, TAINT_OPERATOR_ALLOCATED}:
        return _WHEN.get(taint.key, "")
    if is_of_fault(taint.key):
        return "its agent does when the GPU's fault is over, and draco status says what the GPU needs"
    if is_of_fact(taint.key):
        return "its agent does when the GPU is Ready again, and draco layout show says what that waits for"
    return ""


def _how(taint: DeviceTaint, classes: Mapping[str, DeviceClass] | None, of_pod: Collection[str]) -> str:
    if taint.key == TAINT_UNSETTLED:
        return f" {_TURN_OFF}"
    if taint.key in _BY:
        return f" {_BY[taint.key]}"
    if taint.key == TAINT_OPERATOR_ALLOCATED:
        dracos = sorted(name for name, each in (classes or {}).items() if is_operators(each))
        such = f", such as {dracos[0]}" if dracos else ""
        instead = "" if classes is None else f", or ask for a class whose claims Draco allocates{such}"
        return f" by its MigPolicy (spec.allocator: Scheduler){instead}"
    is_misplaced = not {taint.key, ""}.isdisjoint(of_pod)
    why = " (tolerations of the pod are for taints of nodes)" if is_misplaced else ""
    return "" if classes is None else f", or let the request tolerate it{why}"
