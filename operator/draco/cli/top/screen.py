"""`draco top` as text: one table, and remarks about what is missing in it."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from rich.console import Console

from draco.cli.tables import table
from draco.overview.usage import By, UsageDocument, UsageRow
from draco.resources.texts import listed

_GIB: Final = 1 << 30
_NOBODY: Final = "(unknown)"

_Column = tuple[str, Callable[[UsageRow], str]]


def show(found: UsageDocument, console: Console) -> None:
    """Print the table."""
    if not found.rows:
        console.print("Nothing to show: no agent reports usage of these devices.")
        return
    columns = _COLUMNS[found.by] + _FIGURES
    first = len(columns) - len(_FIGURES)
    made = table(*(name for name, _ in columns), numbers=range(first, len(columns)))
    for row in found.rows:
        made.add_row(*(text(row) for _, text in columns))
    console.print(made)


def remarks(found: UsageDocument) -> Iterator[str]:
    """What the table lacks."""
    if found.stale:
        yield f"Out of date, because their agents have not reported usage for 10 minutes: {listed(found.stale)}."
    for node, gpus in sorted(found.unread.items()):
        yield f"{node}: the driver does not tell the usage of {listed(gpus)}; see `draco health {node}`."


def _gib(value: int | None) -> str:
    return "-" if value is None else f"{value / _GIB:.1f}Gi"


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
    ("GPU", lambda row: "-" if row.utilization_percent is None else f"{row.utilization_percent}%"),
    ("MEMORY", lambda row: _gib(row.memory_used_bytes)),
    ("OF", lambda row: _gib(row.memory_total_bytes)),
    ("USED", _memory_percent),
)
