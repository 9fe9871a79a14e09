"""`draco top`: sums by claim, pod, namespace and GPU, in which every process counts once."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from draco.cli.top import screen
from draco.overview.usage import By, SortBy, UsageDocument, usage
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.usage import DeviceUsage, DeviceUser, GpuUsage, GpuUsageStatus, UnusedDevice

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
GIB = 1 << 30


def a_device(number: int, **said: Any) -> DeviceUsage:
    figures = {"memory_total_bytes": 80 * GIB, "memory_used_bytes": 50 * GIB, "utilization_percent": 90}
    return DeviceUsage(uuid=f"GPU-{number}", device=f"gpu-{number}", product_name="H100", **{**figures, **said})


def a_user(number: int, claim: str, pod: str, **said: Any) -> DeviceUser:
    figures: dict[str, Any] = {"processes": 1, "memory_used_bytes": 10 * GIB, "utilization_percent": 40}
    return DeviceUser(
        uuid=f"GPU-{number}", namespace=said.pop("namespace", "team"), claim=claim, pod=pod, **{**figures, **said}
    )


def a_node(name: str, users: list[DeviceUser], *, devices: int = 2, ago_s: float = 0, **said: Any) -> GpuUsage:
    listed = [a_device(number) for number in range(devices)]
    status = GpuUsageStatus(time=NOW - timedelta(seconds=ago_s), devices=listed, users=users, **said)
    return GpuUsage(metadata=ObjectMeta(name=name), status=status)


def of(*nodes: GpuUsage, by: By = By.CLAIM, sort_by: SortBy = SortBy.UTILIZATION, **chosen: str) -> UsageDocument:
    return usage(nodes, by=by, sort_by=sort_by, now=NOW, **chosen)


def names(found: UsageDocument) -> list[tuple[str, str, str]]:
    return [(row.namespace, row.claim, row.pod) for row in found.rows]


def test_a_claim_with_two_gpus_and_two_containers_is_one_row() -> None:
    users = [a_user(0, "train", "a", container="x"), a_user(0, "train", "a", container="y"), a_user(1, "train", "a")]
    [row] = of(a_node("n", users)).rows
    assert (row.claim, row.pod, row.node, row.devices) == ("train", "a", "n", ["gpu-0", "gpu-1"])
    assert (row.processes, row.utilization_percent, row.memory_used_bytes) == (3, 120, 30 * GIB)
    assert row.memory_total_bytes == 160 * GIB, "each device counts once"


def test_a_claim_on_two_nodes_is_one_row_and_claims_of_two_namespaces_are_two() -> None:
    other = a_user(0, "shared", "c", namespace="other")
    found = of(a_node("n", [a_user(0, "shared", "a"), other]), a_node("m", [a_user(0, "shared", "b")]))
    assert names(found) == [("team", "shared", ""), ("other", "shared", "c")]
    assert (found.rows[0].node, found.rows[0].pods) == ("", 2)


def test_processes_of_nobody_have_a_row_on_each_node() -> None:
    nobody = DeviceUser(uuid="GPU-0", processes=2, memory_used_bytes=GIB, utilization_percent=0)
    found = of(a_node("n", [nobody, a_user(0, "train", "a")]), a_node("m", [nobody]))
    assert names(found) == [("team", "train", "a"), ("", "", ""), ("", "", "")]
    assert [row.node for row in found.rows] == ["n", "m", "n"]


@pytest.mark.parametrize("by", [By.CLAIM, By.POD, By.NAMESPACE])
def test_every_process_counts_once_whatever_a_row_is(by: By) -> None:
    users = [
        a_user(0, "train", "a"),
        a_user(0, "", "b"),
        a_user(1, "two", "a", namespace="other"),
        a_user(1, "two", "c"),
    ]
    found = of(a_node("n", users), a_node("m", users), by=by)
    assert sum(row.processes for row in found.rows) == 8
    assert sum(row.memory_used_bytes or 0 for row in found.rows) == 80 * GIB


def test_a_gpus_row_has_its_own_figures_and_free_gpus_are_there() -> None:
    found = of(a_node("n", [a_user(0, "one", "a"), a_user(0, "two", "b")]), by=By.GPU, sort_by=SortBy.NAME)
    assert [(row.devices, row.pods, row.memory_used_bytes, row.utilization_percent) for row in found.rows] == [
        (["gpu-0"], 2, 50 * GIB, 90),
        (["gpu-1"], 0, 50 * GIB, 90),
    ]


def test_the_greatest_comes_first() -> None:
    users = [
        a_user(0, "busy", "a", memory_used_bytes=GIB, utilization_percent=90),
        a_user(0, "big", "b", memory_used_bytes=70 * GIB, utilization_percent=1),
        a_user(1, "part", "c", memory_used_bytes=2 * GIB, utilization_percent=None),
    ]
    by_order = {order: [row.claim for row in of(a_node("n", users), sort_by=order).rows] for order in SortBy}
    assert by_order == {
        SortBy.UTILIZATION: ["busy", "big", "part"],
        SortBy.MEMORY: ["big", "part", "busy"],
        SortBy.NAME: ["big", "busy", "part"],
    }


def test_a_namespace_or_a_node_is_chosen() -> None:
    nodes = [a_node("n", [a_user(0, "one", "a"), a_user(1, "two", "b", namespace="other")]), a_node("m", [])]
    assert names(of(*nodes, namespace="other")) == [("other", "two", "b")]
    assert [row.node for row in of(*nodes, by=By.GPU, node="m").rows] == ["m", "m"]
    assert [row.devices for row in of(*nodes, by=By.GPU, namespace="team").rows] == [["gpu-0"]]


def test_unknown_figures_stay_unknown() -> None:
    [row] = of(a_node("n", [a_user(0, "part", "a", memory_used_bytes=None, utilization_percent=None)])).rows
    assert (row.memory_used_bytes, row.utilization_percent) == (None, None)


def test_a_claim_is_unused_if_all_of_its_devices_are() -> None:
    def unused(number: int, hours: int) -> UnusedDevice:
        since = NOW - timedelta(hours=hours)
        return UnusedDevice(uuid=f"GPU-{number}", namespace="team", claim="train", claim_uid="u", since=since)

    users = [a_user(0, "train", "a"), a_user(1, "train", "a"), a_user(0, "two", "b")]
    both = of(a_node("n", users, unused=[unused(0, 5), unused(1, 3)]))
    assert {row.claim: row.unused_since for row in both.rows} == {"train": NOW - timedelta(hours=3), "two": None}
    assert [row.unused_since for row in of(a_node("n", users, unused=[unused(0, 5)])).rows] == [None, None]
    console = Console(file=StringIO(), width=200)
    screen.show(both, console, NOW)
    assert console.file.getvalue().splitlines()[1].split()[-1] == "3h"  # type: ignore[attr-defined]


def test_the_screen_says_what_is_missing() -> None:
    users = [a_user(0, "train", "a"), DeviceUser(uuid="GPU-1", processes=1, memory_used_bytes=GIB // 2)]
    found = of(a_node("n", users, ago_s=601, unread=["GPU-7"]))
    console = Console(file=StringIO(), width=200)
    screen.show(found, console, NOW)
    assert [line.split() for line in console.file.getvalue().splitlines()] == [  # type: ignore[attr-defined]
        ["NAMESPACE", "CLAIM", "POD", "NODE", "DEVICES", "PROCESSES", "UTIL", "MEMORY", "OF", "MEM%", "UNUSED"],
        ["team", "train", "a", "n", "gpu-0", "1", "40%", "10.0Gi", "80.0Gi", "12%", "-"],
        ["(unknown)", "-", "-", "n", "gpu-1", "1", "-", "512Mi", "80.0Gi", "1%", "-"],
    ]
    assert list(screen.remarks(found)) == [
        "Out of date, because their agents have not reported usage for 10 minutes: n.",
        "n: the driver does not tell the usage of GPU-7; see `draco health n`.",
    ]
