"""Persists the ledger of faults for the next run of the agent: NVML reports an XID only once.

Owns the file and the ledger of this node's GPUs. `draco.health.ledger` decides what it contains and when a fault is over,
`faults` what one means for a GPU. Only the thread that reads NVML uses it; any thread may set what policies say. A file that
cannot be read or written loses only what was remembered over a restart: that is logged, and NVML's current answers still count. A
file of another release is set aside, never interpreted.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from draco.agent.files import Files
from draco.agent.hardware.faults import judged
from draco.agent.hardware.gpus import EventKind, Gpu, GpuEvent
from draco.health import ledger as ledgers
from draco.health.judgement import override_of
from draco.health.ledger import DriverLoad, FaultLedger, InstancePlace, LedgerEntry
from draco.health.table import severity
from draco.resources.api.draco import RepairedGpu
from draco.resources.api.foreign import read
from draco.resources.api.health import FaultOverride, HealthEffect
from draco.resources.names import GpuUuid

log = structlog.get_logger()

FAULTS = "faults.json"
VERSION = 2
FIGURES_S = 60.0
"""How often mere counts are written: a program can cause faults at any rate."""


class _Record(msgspec.Struct, kw_only=True):
    version: int
    ledger: msgspec.Raw


_record = msgspec.json.Decoder(_Record)
_ledger = msgspec.json.Decoder(FaultLedger)


class FaultNews(NamedTuple):
    """A fault that has begun to count, or is over."""

    gpu: GpuUuid
    name: str
    message: str
    over: bool
    grave: bool
    """Whether its effect is more than being recorded."""


def driver_load(sysfs_root: Path) -> str:
    """Identifies this load of the kernel module (sysfs never reuses an inode number); "" if unknown."""
    try:
        return str((sysfs_root / "module" / "nvidia").stat().st_ino)
    except OSError:
        return ""


class FaultRecord:
    """The ledger of one node's GPUs. `driver_load` identifies the load of the driver, `now` is the time."""

    def __init__(
        self,
        path: Path,
        files: Files,
        *,
        boot_id: str,
        driver_load: Callable[[], str],
        now: Callable[[], datetime],
    ) -> None:
        self.news: deque[FaultNews] = deque(maxlen=256)
        self.overrides: tuple[FaultOverride, ...] = ()
        self.repaired: deque[RepairedGpu] = deque()
        self.forgotten: frozenset[GpuUuid] = frozenset()
        self._path = path
        self._files = files
        self._boot_id = boot_id
        self._driver_load = driver_load
        self._now = now
        self._ledger: FaultLedger | None = None
        self._written: FaultLedger | None = None
        self._written_at: datetime | None = None
        self._said = ""

    @property
    def ending(self) -> bool:
        """Whether a fault needs only a few more readings without it to be over."""
        known = self._ledger
        return known is not None and any(
            one.clean and self._clean(one) <= _SOON and severity(one.kind.effect) for one in known.entries
        )

    def happened(self, event: GpuEvent, place: InstancePlace | None = None) -> None:
        """Record an event. `place` is the instance that it concerns."""
        if event.kind is not EventKind.XID or event.gpu is None:
            return
        self._keep(ledgers.heard(self._known(), event.gpu, event.data, place=place, load=self._load(), now=self._now()))

    def reloaded(self) -> None:
        """Record a reload of the driver during this session."""
        self._keep(ledgers.reloaded(self._known()))

    def look(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """Record a reading; returns the GPUs with the faults that count. Faults that are over are dropped."""
        load = self._load()
        before = ledgers.forgotten(ledgers.loaded(self._known(), load), self.forgotten - {gpu.uuid for gpu in gpus})
        while self.repaired:  # once only: the operator may end the request before the next reading
            one = self.repaired.popleft()
            before = ledgers.repaired(before, GpuUuid(one.uuid), one.until)
        readings = [gpu.reading for gpu in gpus]
        self._keep(ledgers.looked(before, readings, now=self._now(), load=load, clean=self._clean))
        return self.judge(gpus)

    def judge(self, gpus: Iterable[Gpu]) -> list[Gpu]:
        """The GPUs with the faults that are recorded already, without a new reading."""
        known, overrides = self._known(), self.overrides
        return [judged(gpu, known, overrides) for gpu in gpus]

    def _clean(self, entry: LedgerEntry) -> int:
        said = override_of(self.overrides, entry.gpu, entry.name, entry.instance)
        return entry.kind.clean if said is None or said.clean_probes is None else max(1, said.clean_probes)

    def _load(self) -> DriverLoad:
        return DriverLoad(self._boot_id, self._driver_load())

    def _known(self) -> FaultLedger:
        if self._ledger is None:
            self._ledger = self._written = self._read()
        return self._ledger

    def _read(self) -> FaultLedger:
        try:
            content = self._files.read(self._path)
        except FileNotFoundError:
            return FaultLedger()
        except OSError as error:
            log.warning("faults.forgotten", path=str(self._path), error=str(error))
            return FaultLedger()
        try:
            found = read(_record, content)
            if found.version == VERSION:
                return read(_ledger, found.ledger)
            problem = f"version {found.version} is of another release; this one writes {VERSION}"
        except msgspec.DecodeError as broken:
            problem = str(broken)
        with suppress(OSError):
            self._files.keep_as(self._path, self._path.with_suffix(".aside.json"))
        log.warning("faults.forgotten", path=str(self._path), error=problem)
        return FaultLedger()

    def _keep(self, fresh: FaultLedger) -> None:
        before, self._ledger = self._known(), fresh
        self._tell(before, fresh)
        if self._written is not None and ledgers.matters(fresh) == ledgers.matters(self._written):
            at = self._written_at
            if fresh == self._written or (at is not None and (self._now() - at).total_seconds() < FIGURES_S):
                return
        try:
            record = _Record(version=VERSION, ledger=msgspec.Raw(msgspec.json.encode(fresh)))
            self._files.write(self._path, msgspec.json.encode(record))
        except OSError as error:
            if str(error) != self._said:
                log.warning("faults.not_kept", path=str(self._path), error=str(error))
            self._said = str(error)
            return
        self._written, self._written_at, self._said = fresh, self._now(), ""

    def _tell(self, before: FaultLedger, fresh: FaultLedger) -> None:
        """Report faults that begin to count or are over. A fault that has not been seen often enough does not count yet."""
        known = {one.key for one in before.entries if one.certain}
        left = {one.key for one in fresh.entries}
        for one in fresh.entries:
            if one.certain and one.key not in known:
                self._said_of(one, over=False)
        for one in before.entries:
            if one.certain and one.key not in left:
                self._said_of(one, over=True)

    def _said_of(self, one: LedgerEntry, *, over: bool) -> None:
        grave = one.kind.effect is not HealthEffect.RECORD
        self.news.append(FaultNews(one.gpu, one.name, one.message, over, grave))
        if over:
            log.info("gpu.fault_over", gpu=one.gpu, fault=one.name)
        elif grave:
            log.error("gpu.fault", gpu=one.gpu, fault=one.name, error=one.message)
        else:
            log.info("gpu.fault_recorded", gpu=one.gpu, fault=one.name, error=one.message)


_SOON = 10
"""The most readings for which the faster pace is used."""
