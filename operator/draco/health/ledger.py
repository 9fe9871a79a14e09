"""The ledger: which faults a node's GPUs have, from when to when.

Input are XIDs, which NVML reports once, and readings, which show a fault or not. A fault is kept per GPU, name and, if it affects
one, GPU instance. A fault that NVML reports once stays until its end is observed: a reset (NVML asked for one and asks no more),
a new load of the driver, a boot, or the success of a policy's repair Job, because no call reports a reset. After that, and for
all other faults, it is over after a number of readings without it.

A reading that says nothing about a family neither confirms nor ends its faults. Faults that a divided GPU does not report end
with a load of the driver: if it did not remove them, they show as soon as the GPU is whole.

Pure: `agent.hardware.fault_record` persists it, `judgement` says what a fault means for new work.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from draco.health.table import FaultEnd, FaultKind, kind_of, xid
from draco.resources.api.health import FaultFamily
from draco.resources.names import GpuUuid

ENTRIES_PER_GPU = 64
FAMILIES = frozenset(FaultFamily)
_MOST = 2**31 - 1


class DriverLoad(msgspec.Struct, frozen=True):
    """A boot, and a load of the driver ("" if unknown)."""

    boot_id: str
    driver_load: str = ""


class Sign(msgspec.Struct, frozen=True):
    """A fault that a reading shows. `count` is NVML's number of errors, 0 where it counts none."""

    name: str
    message: str = ""
    count: int = 0


class LinkReading(msgspec.Struct, frozen=True):
    """A GPU's NVLinks: those that are up, one bit each, and the errors counted on all of them."""

    up: int
    errors: int = 0


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a GPU. It says nothing of families in `unasked`, nor of `hidden` ones: the GPU is divided or lacks them."""

    gpu: GpuUuid
    signs: tuple[Sign, ...] = ()
    unasked: frozenset[FaultFamily] = frozenset()
    hidden: frozenset[FaultFamily] = frozenset()
    links: LinkReading | None = None


class InstancePlace(msgspec.Struct, frozen=True):
    """The instance of an XID. `mask` are its memory units, None if unknown."""

    gi: int
    ci: int | None = None
    mask: int | None = None


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of one GPU.

    `mask` are the affected memory units, None for all. `asked`: NVML has asked for a recovery action since. `ended`: its end was
    observed. `clean` counts the readings without it since then, `failing` the consecutive readings with it.
    """

    gpu: GpuUuid
    name: str
    code: int | None = None
    message: str = ""
    instance: int | None = None
    compute: int | None = None
    mask: int | None = None
    boot_id: str = ""
    driver_load: str = ""
    asked: bool = False
    ended: bool = False
    count: int = 1
    clean: int = 0
    failing: int = 0
    first_seen: datetime | None = None
    last_seen: datetime | None = None

    @property
    def key(self) -> tuple[GpuUuid, str, int | None]:
        """Its identity in the ledger."""
        return self.gpu, self.name, self.instance

    @property
    def kind(self) -> FaultKind:
        """Its row in the table."""
        return kind_of(self.name, self.code)

    @property
    def certain(self) -> bool:
        """Whether enough consecutive readings have shown it."""
        return self.failing >= self.kind.after or self.kind.after == 1


class FaultLedger(msgspec.Struct, frozen=True, omit_defaults=True):
    """All open faults, and, by UUID, the NVLinks that were up and their errors at the last count."""

    entries: tuple[LedgerEntry, ...] = ()
    links: dict[GpuUuid, LinkReading] = {}

    def of(self, gpu: GpuUuid) -> tuple[LedgerEntry, ...]:
        """The faults of one GPU."""
        return tuple(one for one in self.entries if one.gpu == gpu)


CleanProbes = Callable[[LedgerEntry], int]
"""How many readings without a fault end it."""


def by_table(entry: LedgerEntry) -> int:
    """The number from the table."""
    return entry.kind.clean


def heard(
    ledger: FaultLedger, gpu: GpuUuid, code: int, *, place: InstancePlace | None = None, load: DriverLoad, now: datetime
) -> FaultLedger:
    """Record an XID of the GPU or of one of its instances."""
    kind = xid(code)
    where = None if kind.spreads else place
    fresh = LedgerEntry(
        gpu=gpu,
        name=kind.name,
        code=code,
        message=kind.sentence,
        instance=None if where is None else where.gi,
        compute=None if where is None else where.ci,
        mask=None if where is None else where.mask,
        boot_id=load.boot_id,
        driver_load=load.driver_load,
        first_seen=now,
        last_seen=now,
    )
    known = next((one for one in ledger.entries if one.key == fresh.key), None)
    if known is not None:
        # A reset that the first one asked for may be over while the second one is still to come.
        fresh = msgspec.structs.replace(
            fresh,
            asked=known.asked and not known.ended,
            count=min(known.count + 1, _MOST),
            first_seen=known.first_seen,
            mask=None if known.mask is None or fresh.mask is None else known.mask | fresh.mask,
        )
    return _with(ledger, [one for one in ledger.entries if one.key != fresh.key] + [fresh])


def loaded(ledger: FaultLedger, load: DriverLoad) -> FaultLedger:
    """Record that the driver may have been loaded, or the node booted, since some of the faults."""
    return _with(ledger, [_after_load(one, load) for one in ledger.entries])


def reloaded(ledger: FaultLedger) -> FaultLedger:
    """Record that the driver was loaded while the agent had a session with it."""
    return _with(ledger, [_ended(one) if _ends_with_load(one.kind) else one for one in ledger.entries])


def repaired(ledger: FaultLedger, gpu: GpuUuid, until: datetime) -> FaultLedger:
    """Record that a GPU's reset was reported as done. A fault seen after `until` may be newer than the reset: it stays."""

    def is_meant(one: LedgerEntry) -> bool:
        before = one.last_seen is not None and one.last_seen <= until
        return one.gpu == gpu and one.kind.ends is FaultEnd.RESET and before

    return _with(ledger, [_ended(one) if is_meant(one) else one for one in ledger.entries])


def looked(
    ledger: FaultLedger,
    readings: Sequence[GpuReading],
    *,
    now: datetime,
    load: DriverLoad,
    clean: CleanProbes = by_table,
) -> FaultLedger:
    """Record readings. GPUs without a reading keep their faults."""
    links = dict(ledger.links)
    entries = [one for one in ledger.entries if one.gpu not in {reading.gpu for reading in readings}]
    for reading in readings:
        seen = reading
        if reading.links is not None:
            found = _of_links(links.get(reading.gpu), reading.links)
            seen = msgspec.structs.replace(reading, signs=(*reading.signs, *found))
            links[reading.gpu] = _baseline(links.get(reading.gpu), reading.links)
        entries += _one_looked(ledger.of(reading.gpu), seen, now, load, clean)
    return _with(msgspec.structs.replace(ledger, links=links), entries)


def forgotten(ledger: FaultLedger, gpus: Iterable[GpuUuid]) -> FaultLedger:
    """Drop these GPUs, which somebody said are gone for good."""
    gone = set(gpus)
    if not gone.intersection({one.gpu for one in ledger.entries} | set(ledger.links)):
        return ledger
    links = {gpu: one for gpu, one in ledger.links.items() if gpu not in gone}
    return FaultLedger(tuple(one for one in ledger.entries if one.gpu not in gone), links)


def _one_looked(
    entries: Sequence[LedgerEntry], reading: GpuReading, now: datetime, load: DriverLoad, clean: CleanProbes
) -> list[LedgerEntry]:
    signs = {sign.name: sign for sign in reading.signs}
    asks = any(kind_of(name).family is FaultFamily.RECOVERY for name in signs)
    left = []
    for one in entries:
        sign = signs.pop(one.name, None) if one.code is None else None
        kept = _seen(one, sign, now) if sign is not None else _unseen(one, reading, asks, clean)
        if kept is not None:
            left.append(kept)
    left += [_first_seen(reading.gpu, sign, now, load) for sign in signs.values()]
    return left


def _first_seen(gpu: GpuUuid, sign: Sign, now: datetime, load: DriverLoad) -> LedgerEntry:
    return LedgerEntry(
        gpu=gpu,
        name=sign.name,
        message=sign.message or kind_of(sign.name).sentence,
        boot_id=load.boot_id,
        driver_load=load.driver_load,
        count=min(max(1, sign.count), _MOST),
        failing=1,
        first_seen=now,
        last_seen=now,
    )


def _seen(one: LedgerEntry, sign: Sign, now: datetime) -> LedgerEntry:
    """Count NVML's errors where it counts them, else recurrences."""
    came_back = one.clean > 0
    return msgspec.structs.replace(
        one,
        message=sign.message or one.message,
        count=min(sign.count or one.count + came_back, _MOST),
        failing=min(one.failing + 1, _MOST),
        ended=False,
        clean=0,
        last_seen=now,
    )


def _unseen(one: LedgerEntry, reading: GpuReading, asks: bool, clean: CleanProbes) -> LedgerEntry | None:
    kind = one.kind
    if kind.family in reading.unasked or (kind.family in reading.hidden and not (one.ended and kind.load_ends)):
        return one
    if kind.ends is FaultEnd.RESET and not one.ended and FaultFamily.RECOVERY not in reading.unasked | reading.hidden:
        one = msgspec.structs.replace(one, asked=True) if asks else _ended(one) if one.asked else one
    if kind.ends is not FaultEnd.LOOK and not one.ended:
        return one
    counted = msgspec.structs.replace(one, clean=one.clean + 1)
    if counted.clean >= clean(counted) or not one.certain:
        return None
    return counted


def _ended(one: LedgerEntry) -> LedgerEntry:
    return msgspec.structs.replace(one, ended=True)


def _after_load(one: LedgerEntry, load: DriverLoad) -> LedgerEntry:
    """No call reports a reset; a boot has another id, and a load of the driver another number."""
    kind = one.kind
    if one.ended or (kind.ends is FaultEnd.LOOK and not kind.load_ends):
        return one
    if one.boot_id != load.boot_id:
        return _ended(one)
    other = bool(one.driver_load and load.driver_load and one.driver_load != load.driver_load)
    return _ended(one) if other and _ends_with_load(kind) else one


def _ends_with_load(kind: FaultKind) -> bool:
    return kind.load_ends or kind.ends is FaultEnd.RESET


def _of_links(before: LinkReading | None, now: LinkReading) -> list[Sign]:
    """What is wrong with links, compared with before: a link that never was up may have nothing at its other end."""
    if before is None:
        return []
    found = []
    down = before.up & ~now.up
    if down and now.up:  # with none up, the bridge is gone or the fabric is not there yet
        numbers = ", ".join(str(bit) for bit in range(down.bit_length()) if down >> bit & 1)
        found.append(Sign("NvLinkDown", f"NVLink {numbers} was up and is down; {_RETRAIN}.", down.bit_count()))
    if now.errors > before.errors:
        sentence = "NVLink errors were counted; if they continue, run NVIDIA's field diagnostic."
        found.append(Sign("NvLinkErrors", sentence, now.errors))
    return found


_RETRAIN = "drain and reset the GPU, and check the other end of the link if that does not help"


def _baseline(before: LinkReading | None, now: LinkReading) -> LinkReading:
    up = 0 if before is None or not now.up else before.up
    return LinkReading(up | now.up, now.errors)


def _with(ledger: FaultLedger, entries: Iterable[LedgerEntry]) -> FaultLedger:
    """The ledger with these entries, in a stable order and within `ENTRIES_PER_GPU`."""
    by_gpu: dict[GpuUuid, list[LedgerEntry]] = {}
    for one in entries:
        by_gpu.setdefault(one.gpu, []).append(one)
    kept = [one for found in by_gpu.values() for one in _most_important(found)]
    return msgspec.structs.replace(ledger, entries=tuple(kept))


def _most_important(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    if len(entries) <= ENTRIES_PER_GPU:
        return entries
    blocking_first = sorted(entries, key=lambda one: one.kind.ends is FaultEnd.LOOK)
    return [one for one in entries if one in blocking_first[:ENTRIES_PER_GPU]]


def matters(ledger: FaultLedger) -> Mapping[str, object]:
    """What must be persisted immediately; the rest are counts, of which the last minute may be lost."""
    return {
        "entries": [
            (one.key, one.mask, one.boot_id, one.driver_load, one.asked, one.ended, one.certain)
            for one in ledger.entries
        ],
        "links": {gpu: one.up for gpu, one in ledger.links.items()},
    }
