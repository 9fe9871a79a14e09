"""Which faults a GPU can have, and what each asks for, from `faults.toml`.

Owns the table and what follows from a row that leaves something out. Whether a fault is there, and over, is `ledger`'s.
"""

import pkgutil
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from draco.resources.api.health import FaultFamily, FaultScope, HealthEffect

LADDER: Final = tuple(HealthEffect)
"""The effects, the mildest first."""
UNKNOWN_XID = "XidUnknown"
"""What an XID that stands in no row is called where there must not be too many names."""


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
    """What ends a fault: that it is not seen any more, a reset of the GPU or a new load of the driver, or only a boot."""

    LOOK = "look"
    RESET = "reset"
    REBOOT = "reboot"


class KnownHealth(StrEnum):
    """What is said of a GPU's health; the same words as in a GpuNode."""

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


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What XIDs and other faults say alike; `faults.toml` says what each field means."""

    action: FaultAction
    what: str
    effect: HealthEffect | None = None
    ends: FaultEnd | None = None
    clean: int | None = None


class XidRow(_Row, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row for XIDs that mean the same."""

    codes: list[int]
    spreads: bool = False


class FaultRow(_Row, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row for a fault that NVML answers with, or that the agent finds."""

    name: str
    family: FaultFamily
    scope: FaultScope = FaultScope.GPU
    latched: bool = False
    load_ends: bool = False
    health: KnownHealth = KnownHealth.UNHEALTHY
    after: int = 1


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    xids: list[XidRow]
    faults: list[FaultRow]


class FaultKind(msgspec.Struct, frozen=True, kw_only=True):
    """A fault by its name, and everything that the table says of it."""

    name: str
    family: FaultFamily
    action: FaultAction
    what: str
    effect: HealthEffect
    ends: FaultEnd
    clean: int
    latched: bool
    load_ends: bool = False
    code: int | None = None
    scope: FaultScope = FaultScope.GPU
    spreads: bool = False
    health: KnownHealth = KnownHealth.UNHEALTHY
    after: int = 1

    @property
    def sentence(self) -> str:
        """What happened, and what to do."""
        what = self.what if self.code is None else f"XID {self.code}: {self.what}"
        return f"{what[0].upper()}{what[1:]}; {_CURES[self.action]}."


TABLE: Final = msgspec.toml.decode(pkgutil.get_data(__package__, "faults.toml") or b"", type=_Table)


def _common(row: _Row) -> dict[str, object]:
    clean = CLEAN_OF_PROGRAMS if row.action in _OF_PROGRAMS else CLEAN
    return {
        "action": row.action,
        "what": row.what,
        "effect": row.effect or _EFFECTS.get(row.action, HealthEffect.RECORD),
        "ends": row.ends or _ENDS.get(row.action, FaultEnd.LOOK),
        "clean": clean if row.clean is None else row.clean,
    }


def _xid_kind(code: int, row: XidRow) -> FaultKind:
    common = _common(row)
    latched = common["ends"] is not FaultEnd.LOOK
    fields = common | {"name": f"Xid{code}", "family": FaultFamily.XID, "code": code, "latched": latched}
    return FaultKind(**fields, spreads=row.spreads)  # type: ignore[arg-type] # built from typed rows


def _fault_kind(row: FaultRow) -> FaultKind:
    fields = {"name": row.name, "family": row.family, "scope": row.scope, "latched": row.latched}
    rest = {"health": row.health, "after": row.after, "load_ends": row.load_ends}
    return FaultKind(**_common(row), **fields, **rest)  # type: ignore[arg-type] # built from typed rows


KINDS: Final[Mapping[str, FaultKind]] = MappingProxyType(
    {kind.name: kind for kind in (_xid_kind(code, row) for row in TABLE.xids for code in row.codes)}
    | {row.name: _fault_kind(row) for row in TABLE.faults}
)
"""Every fault that has a row, by its name."""


def kind_of(name: str, code: int | None = None) -> FaultKind:
    """What is known of a fault. A record of another release may name what this one does not know."""
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
    """What is known of an XID."""
    return kind_of(f"Xid{code}", code)


def metric_name(name: str) -> str:
    """A fault's name where every name costs something for ever: a number that stands in no row is not one of its own."""
    return name if name in KINDS else UNKNOWN_XID


def severity(effect: HealthEffect) -> int:
    """Where an effect stands on the ladder."""
    return LADDER.index(effect)
