"""`draco top` as text: one table, and remarks about what is missing in it."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from rich.console import Console

from draco.cli.tables import table
from draco.overview.usage import By, UsageDocument, UsageRow
from draco.resources.texts import listed

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
_NOBODY: Final = "(unknown)"

_Column = tuple[str, Callable[[UsageRow], str]]


def show(found: UsageDocument, console: Console, now: datetime) -> None:
    """Print the table."""
    if not found.rows:
        console.print("Nothing to show: no agent reports usage of these devices.")
        return
    named = _COLUMNS[found.by]
    columns = named + _FIGURES
    if found.by is By.CLAIM:
        columns = (*columns, ("UNUSED", lambda row: _ago(row.unused_since, now)))
    made = table(*(name for name, _ in columns), numbers=range(len(named), len(columns)))
    for row in found.rows:
        made.add_row(*(text(row) for _, text in columns))
    console.print(made)


def remarks(found: UsageDocument) -> Iterator[str]:
    """What the table lacks."""
    if found.stale:
        yield f"Out of date, because their agents have not reported usage for 10 minutes: {listed(found.stale)}."
    for node, gpus in sorted(found.unread.items()):
        yield f"{node}: the driver does not tell the usage of {listed(gpus)}; see `draco health {node}`."


def _size(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value / _GIB:.1f}Gi" if value >= _GIB or not value else f"{value / _MIB:.0f}Mi"


def _ago(since: datetime | None, now: datetime) -> str:
    if since is None:
        return "-"
    minutes = int((now - since).total_seconds() // 60)
    hours, days = minutes // 60, minutes // 1440
    return f"{minutes}m" if minutes < 120 else f"{hours}h" if hours < 48 else f"{days}d"


def _memory_percent(row: UsageRow) -> str:
    used, total = row.memory_used_bytes, row.memory_total_bytes
    return "-" if used is None or not total else f"{100 * used / total:.0f}%"


def _devices(row: UsageRow) -> str:
    return listed(row.devices, 2)


def _user(row: UsageRow) -> str:
    return row.namespace or _NOBODY


_COLUMNS: Final[Mapping[By, tuple[_Column, ...]]] = MappingProxyType(
    {
        By.CLAIM: (
            ("NAMESPACE", _user),
            ("CLAIM", lambda row: row.claim or "-"),
            ("POD", lambda row: row.pod or ("-" if row.pods < 2 else f"{row.pods} pods")),
            ("NODE", lambda row: row.node or "-"),
            ("DEVICES", _devices),
        ),
        By.POD: (
            ("NAMESPACE", _user),
            ("POD", lambda row: row.pod or "-"),
            ("NODE", lambda row: row.node or "-"),
            ("DEVICES", _devices),
        ),
        By.NAMESPACE: (
            ("NAMESPACE", _user),
            ("CLAIMS", lambda row: str(row.claims)),
            ("PODS", lambda row: str(row.pods)),
            ("DEVICES", lambda row: str(len(row.devices))),
        ),
        By.GPU: (
            ("NODE", lambda row: row.node),
            ("DEVICE", _devices),
            ("PRODUCT", lambda row: row.product or "-"),
            ("PODS", lambda row: str(row.pods)),
        ),
    }
)
_FIGURES: Final[tuple[_Column, ...]] = (
    ("PROCESSES", lambda row: str(row.processes)),
    ("UTIL", lambda row: "-" if row.utilization_percent is None else f"{row.utilization_percent}%"),
    ("MEMORY", lambda row: _size(row.memory_used_bytes)),
    ("OF", lambda row: _size(row.memory_total_bytes)),
    ("MEM%", _memory_percent),
)
