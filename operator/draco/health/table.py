"""Which faults a GPU can have, and what each asks for, from `faults.toml`. `ledger` says whether a fault is present."""

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from draco.resources.api.health import FaultFamily, FaultScope, HealthEffect

LADDER: Final = tuple(HealthEffect)
"""The effects, the mildest first."""
UNKNOWN_XID = "XidUnknown"
"""The name of an XID without a row where the number of names must be bounded."""


class FaultAction(StrEnum):
    """What a fault asks for first."""

    RESET = "reset"
    REBOOT = "reboot"
    RECOVERY_ACTION = "recovery-action"
    NEXT_RESET = "next-reset"
    REPLACE = "replace"
    APPLICATION = "application"
    INSPECT = "inspect"
    RECORD = "record"


class FaultEnd(StrEnum):
    """What ends a fault: readings without it, a reset of the GPU or a new load of the driver, or only a boot."""

    LOOK = "look"
    RESET = "reset"
    REBOOT = "reboot"


class HealthState(StrEnum):
    """The three answers of a health check, in the words of a GpuNode; what cannot be read is Unknown, never Healthy."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


_CURES: Final = {
    FaultAction.RESET: "drain it and reset it with `nvidia-smi --gpu-reset`, reload the driver, or reboot the node",
    FaultAction.REBOOT: "drain and reboot the node",
    FaultAction.RECOVERY_ACTION: "do what NVML's recovery action asks for, if it asks for one",
    FaultAction.NEXT_RESET: "the GPU works: reset it at the next opportunity",
    FaultAction.REPLACE: "replace the GPU",
    FaultAction.APPLICATION: "start the program again",
    FaultAction.INSPECT: "look at the node",
    FaultAction.RECORD: "nothing is to be done",
}
_EFFECTS: Final = {
    FaultAction.RESET: HealthEffect.NO_SCHEDULE,
    FaultAction.REBOOT: HealthEffect.NO_SCHEDULE,
    FaultAction.REPLACE: HealthEffect.NO_SCHEDULE,
    FaultAction.RECOVERY_ACTION: HealthEffect.ANNOUNCE,
    FaultAction.INSPECT: HealthEffect.ANNOUNCE,
}
_ENDS: Final = {
    FaultAction.RESET: FaultEnd.RESET,
    FaultAction.REBOOT: FaultEnd.REBOOT,
    FaultAction.RECOVERY_ACTION: FaultEnd.RESET,
    FaultAction.NEXT_RESET: FaultEnd.RESET,
    FaultAction.INSPECT: FaultEnd.RESET,
}
_OF_PROGRAMS = frozenset({FaultAction.APPLICATION, FaultAction.RECORD})
CLEAN: Final = 3
CLEAN_OF_PROGRAMS: Final = 360


class FaultKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fault with all fields of its row; `faults.toml` documents them."""

    name: str
    family: FaultFamily
    action: FaultAction
    what: str
    effect: HealthEffect
    ends: FaultEnd
    clean: int
    latched: bool = False
    load_ends: bool = False
    code: int | None = None
    scope: FaultScope = FaultScope.GPU
    spreads: bool = False
    health: HealthState = HealthState.UNHEALTHY
    after: int = 1

    @property
    def sentence(self) -> str:
        """What happened, and what to do."""
        what = self.what if self.code is None else f"XID {self.code}: {self.what}"
        return f"{what[0].upper()}{what[1:]}; {_CURES[self.action]}."


TABLE: Final = msgspec.toml.decode(pkgutil.get_data(__package__, "faults.toml") or b"")


def _kind(row: Mapping[str, Any]) -> FaultKind:
    action = FaultAction(row["action"])
    left_out = {
        "effect": _EFFECTS.get(action, HealthEffect.RECORD),
        "ends": _ENDS.get(action, FaultEnd.LOOK),
        "clean": CLEAN_OF_PROGRAMS if action in _OF_PROGRAMS else CLEAN,
    }
    return msgspec.convert({**left_out, **row}, FaultKind)


def _xid_kinds(codes: Iterable[int], **row: Any) -> Iterator[FaultKind]:
    for code in codes:
        kind = _kind({**row, "name": f"Xid{code}", "family": FaultFamily.XID, "code": code})
        yield msgspec.structs.replace(kind, latched=kind.ends is not FaultEnd.LOOK)


KINDS: Final[Mapping[str, FaultKind]] = MappingProxyType(
    {kind.name: kind for row in TABLE["xids"] for kind in _xid_kinds(**row)}
    | {row["name"]: _kind(row) for row in TABLE["faults"]}
)
"""Every fault with a row, by name."""


def kind_of(name: str, code: int | None = None) -> FaultKind:
    """The kind of a fault. A record of another release may have a name that this one does not know."""
    found = KINDS.get(name)
    if found is not None:
        return found
    what = "an error of unknown meaning" if code is not None else "a fault that another release of the agent knows"
    return FaultKind(
        name=name,
        family=FaultFamily.XID if code is not None else FaultFamily.DRIVER,
        action=FaultAction.INSPECT,
        what=what,
        effect=HealthEffect.ANNOUNCE,
        ends=FaultEnd.RESET,
        clean=CLEAN,
        latched=True,
        code=code,
    )


def xid(code: int) -> FaultKind:
    """The kind of an XID."""
    return kind_of(f"Xid{code}", code)


def metric_name(name: str) -> str:
    """A fault's name for metrics, where every name costs memory: XIDs without a row share one."""
    return name if name in KINDS else UNKNOWN_XID


def severity(effect: HealthEffect) -> int:
    """The position of an effect, the mildest first."""
    return LADDER.index(effect)
