"""`draco waste`: for how long namespaces held GPUs, how long they used them, and what the rest cost.

Owns the sums over nodes and days, and prices. A device counts while a claim holds it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

from draco.resources.api.base import OutputStruct
from draco.resources.api.usage import GpuUsage

MOST_DAYS = 31
"""Days that agents remember."""
_OTHERS = "(others)"


class PriceList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a device for an hour, by patterns of product names, with the profile of MIG devices. The first match counts."""

    currency: str = "USD"
    prices: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}

    def of(self, resource: str) -> float | None:
        """The price of a resource; None without one."""
        return next((price for pattern, price in self.prices.items() if fnmatchcase(resource, pattern)), None)


class WasteRow(OutputStruct, frozen=True, kw_only=True):
    """What the claims of a namespace held and used of one kind of device. Costs are None without a price."""

    namespace: str
    resource: str
    held_hours: float
    used_hours: float
    unused_hours: float
    held_cost: float | None = None
    unused_cost: float | None = None


class WasteDocument(OutputStruct, frozen=True, kw_only=True):
    """What `draco waste -o json` prints. `first` and `last` are days in UTC; `last` may not be over."""

    first: date
    last: date
    currency: str
    rows: list[WasteRow] = []
    notes: list[str] = []

    @property
    def priced(self) -> bool:
        """Whether anything has a price."""
        return any(row.held_cost is not None for row in self.rows)


def waste(
    usages: Iterable[GpuUsage], *, today: date, days: int, prices: PriceList, namespace: str = ""
) -> WasteDocument:
    """The rows of the last `days` with today, the most expensive or longest waste first. `namespace` selects; "" for all."""
    first = today - timedelta(days=days - 1)
    held: dict[tuple[str, str], int] = defaultdict(int)
    used: dict[tuple[str, str], int] = defaultdict(int)
    for one in (each for usage in usages for each in usage.status.held):
        if namespace in ("", one.namespace) and first.isoformat() <= one.day <= today.isoformat():
            key = (one.namespace or _OTHERS, one.resource or _OTHERS)
            held[key] += one.held_seconds
            used[key] += one.used_seconds
    rows = [_row(*key, seconds, used[key], prices) for key, seconds in held.items()]
    return WasteDocument(
        first=first,
        last=today,
        currency=prices.currency,
        rows=sorted(rows, key=lambda row: (-(row.unused_cost or 0), -row.unused_hours, row.namespace, row.resource)),
    )


def _row(namespace: str, resource: str, held_s: int, used_s: int, prices: PriceList) -> WasteRow:
    held, used = held_s / 3600, used_s / 3600
    price = prices.of(resource)
    return WasteRow(
        namespace=namespace,
        resource=resource,
        held_hours=round(held, 2),
        used_hours=round(used, 2),
        unused_hours=round(held - used, 2),
        held_cost=None if price is None else round(held * price, 2),
        unused_cost=None if price is None else round((held - used) * price, 2),
    )


def total(rows: Sequence[WasteRow]) -> WasteRow:
    """The sum of all rows; costs of those with a price."""
    held_costs = [row.held_cost for row in rows if row.held_cost is not None]
    unused_costs = [row.unused_cost for row in rows if row.unused_cost is not None]
    return WasteRow(
        namespace="",
        resource="",
        held_hours=round(sum(row.held_hours for row in rows), 2),
        used_hours=round(sum(row.used_hours for row in rows), 2),
        unused_hours=round(sum(row.unused_hours for row in rows), 2),
        held_cost=round(sum(held_costs), 2) if held_costs else None,
        unused_cost=round(sum(unused_costs), 2) if unused_costs else None,
    )
