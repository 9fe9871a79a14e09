"""The rows of `draco waste` for other programs: as CSV, and as OpenCost's plugins for custom costs answer."""

import csv
import io
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any

from draco.overview.waste import WasteDocument


def as_csv(found: WasteDocument) -> str:
    """The rows for a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ["namespace", "resource", "held_hours", "used_hours", "unused_hours", "held_cost", "unused_cost"]
    writer.writerow(["first_day", "last_day", *names, "currency"])
    for row in found.rows:
        values = [getattr(row, name) for name in names]
        # A text that begins so is a formula to spreadsheets.
        safe = [f"'{each}" if isinstance(each, str) and each[:1] in tuple("=+-@") else each for each in values]
        writer.writerow([found.first, found.last, *("" if each is None else each for each in safe), found.currency])
    return out.getvalue()


def as_opencost(found: WasteDocument) -> list[Mapping[str, Any]]:
    """One response of OpenCost's custom costs, with the fields of its protobuf messages. Costs are those of held devices."""
    start = datetime.combine(found.first, time(), UTC)
    end = datetime.combine(found.last + timedelta(days=1), time(), UTC)
    costs = [
        {
            "zone": "",
            "resource_name": row.resource,
            "resource_type": "GPU",
            "id": f"{row.namespace}/{row.resource}",
            "provider_id": f"draco.dev/{row.namespace}/{row.resource}",
            "billed_cost": row.held_cost or 0.0,
            "list_cost": row.held_cost or 0.0,
            "usage_quantity": row.held_hours,
            "usage_unit": "hours",
            "labels": {
                "namespace": row.namespace,
                "used_hours": f"{row.used_hours:.2f}",
                "unused_hours": f"{row.unused_hours:.2f}",
                "unused_cost": f"{row.unused_cost or 0.0:.2f}",
            },
        }
        for row in found.rows
    ]
    times = {"start": f"{start:%Y-%m-%dT%H:%M:%SZ}", "end": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
    return [{"domain": "draco.dev", "version": "v1", "currency": found.currency, **times, "errors": [], "costs": costs}]
