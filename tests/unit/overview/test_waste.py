"""`draco waste`: hours held and used by namespace and kind of device, with prices."""

import csv
from datetime import date
from io import StringIO

import pytest

from draco.cli.waste.forms import as_csv, as_opencost
from draco.overview.waste import PriceList, WasteDocument, total, waste
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.usage import GpuUsage, GpuUsageStatus, HeldTime

TODAY = date(2026, 11, 30)
H100 = "NVIDIA H100 80GB HBM3"
PART = f"{H100} MIG 1g.10gb"


def held(hours: float, used: float, *, namespace: str = "team", resource: str = H100, day: int = 30) -> HeldTime:
    seconds = {"held_seconds": round(hours * 3600), "used_seconds": round(used * 3600)}
    return HeldTime(day=f"2026-11-{day:02}", namespace=namespace, resource=resource, **seconds)


def of(*times: HeldTime, days: int = 7, prices: PriceList | None = None, namespace: str = "") -> WasteDocument:
    nodes = [
        GpuUsage(metadata=ObjectMeta(name=str(number)), status=GpuUsageStatus(held=[one]))
        for number, one in enumerate(times)
    ]
    return waste(nodes, today=TODAY, days=days, prices=prices or PriceList(), namespace=namespace)


def test_nodes_and_days_add_up_by_namespace_and_kind_of_device() -> None:
    found = of(held(10, 4), held(2, 2, day=29), held(1, 0, resource=PART), held(5, 5, namespace="other"))
    assert [(row.namespace, row.resource, row.held_hours, row.used_hours, row.unused_hours) for row in found.rows] == [
        ("team", H100, 12, 6, 6),
        ("team", PART, 1, 0, 1),
        ("other", H100, 5, 5, 0),
    ]
    assert (total(found.rows).held_hours, total(found.rows).unused_hours) == (18, 7)


def test_only_the_last_days_and_the_chosen_namespace_count() -> None:
    times = [held(1, 0, day=day) for day in (22, 23, 24, 30)]
    assert [row.held_hours for row in of(*times).rows] == [2]
    assert [row.held_hours for row in of(*times, days=1).rows] == [1]
    assert of(*times, namespace="other").rows == []


def test_the_first_price_that_fits_counts_and_the_dearest_waste_comes_first() -> None:
    prices = PriceList(currency="EUR", prices={"* MIG 1g.*": 0.5, "NVIDIA H100*": 2.0})
    found = of(held(10, 9), held(10, 0, resource=PART), held(100, 0, resource="NVIDIA L4"), prices=prices)
    assert [(row.resource, row.held_cost, row.unused_cost) for row in found.rows] == [
        (PART, 5.0, 5.0),
        (H100, 20.0, 2.0),
        ("NVIDIA L4", None, None),
    ]
    assert total(found.rows).held_cost == 25.0


def test_the_rest_of_very_many_namespaces_has_a_row() -> None:
    assert [(row.namespace, row.resource) for row in of(held(1, 0, namespace="", resource="")).rows] == [
        ("(others)", "(others)")
    ]


def test_a_spreadsheet_gets_every_row_and_no_formula() -> None:
    found = of(held(10, 4), held(1, 0, resource="=cmd()"), prices=PriceList(prices={"NVIDIA*": 2.0}))
    rows = list(csv.DictReader(StringIO(as_csv(found))))
    assert rows[0] == {
        "first_day": "2026-11-24",
        "last_day": "2026-11-30",
        "namespace": "team",
        "resource": H100,
        "held_hours": "10.0",
        "used_hours": "4.0",
        "unused_hours": "6.0",
        "held_cost": "20.0",
        "unused_cost": "12.0",
        "currency": "USD",
    }
    assert (rows[1]["resource"], rows[1]["held_cost"]) == ("'=cmd()", "")


def test_opencost_gets_costs_with_the_waste_in_labels() -> None:
    [answer] = as_opencost(of(held(10, 4), prices=PriceList(currency="EUR", prices={"*": 2.0})))
    assert (answer["currency"], answer["start"], answer["end"]) == (
        "EUR",
        "2026-11-24T00:00:00Z",
        "2026-12-01T00:00:00Z",
    )
    [cost] = answer["costs"]
    assert (cost["billed_cost"], cost["usage_quantity"], cost["usage_unit"]) == (20.0, 10.0, "hours")
    assert cost["labels"] == {
        "namespace": "team",
        "used_hours": "4.00",
        "unused_hours": "6.00",
        "unused_cost": "12.00",
    }


@pytest.mark.parametrize("priced", [False, True])
def test_costs_are_known_only_with_a_price(priced: bool) -> None:
    assert of(held(1, 0), prices=PriceList(prices={"*": 1.0} if priced else {})).priced is priced
