"""How the figures of several benchmarks become one table, and that the allocation benchmarks measure what they claim."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import claim_allocation, device_memory, first_fitting, partitioned_node, selector_scan, slice_change
from benchmarks.__main__ import FOLDER, NOT_BENCHMARKS, SIZES, runs
from benchmarks.gpu_fleet import a_partitioned_node, crowded, put
from benchmarks.table import ROWS_FILE, Row, read, shown, tell
from draco.allocation.fleet.fleet import Fleet
from tests.builders import a_claim


def test_rows_are_shown_and_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows"
    monkeypatch.setenv(ROWS_FILE, str(file))
    rows = [Row("list", "0.1 s", "1.2 s", "10 times", True), Row("a long figure", "3 MB", "-", "2 MB", False)]
    tell(rows[0])
    tell(rows[1])
    assert read(file) == rows
    assert "0.1 s" in capsys.readouterr().out


def test_columns_are_aligned_and_a_missed_target_stands_out() -> None:
    lines = shown([Row("list", "1", "2", "3", True), Row("longer", "1", "2", "3", False)]).splitlines()
    assert lines[0].startswith("figure  measured")
    assert lines[1].endswith("met")
    assert lines[2].endswith("MISSED")
    assert lines[1].index("met") == lines[2].index("MISSED")


def test_every_module_of_the_folder_is_a_benchmark_with_a_command() -> None:
    for path in FOLDER.glob("*.py"):
        if path.stem not in NOT_BENCHMARKS:
            text = path.read_text(encoding="utf-8")
            assert "tell(" in text, path
            assert '__name__ == "__main__"' in text, path


def test_a_benchmark_of_several_sizes_is_run_at_each() -> None:
    assert runs(["explain", "operator_scale"]) == [
        ["explain"],
        ["operator_scale"],
        ["operator_scale", "--nodes", "10000", "--claims", "200"],
        ["operator_scale", "--mig"],
    ]
    assert all((FOLDER / f"{name}.py").exists() for name in SIZES)


def test_one_in_a_thousand_gpus_of_a_crowded_cluster_is_free_and_one_node_fits() -> None:
    fleet = Fleet()
    put(fleet, *crowded(1000))
    free = [row for row, live in enumerate(fleet.inventory.columns.live) if live and not fleet.held[row]]
    assert len(free) in range(2, 16)
    measured = first_fitting.measure(30)
    assert measured.new_s > 0
    assert first_fitting.row(measured).met is (measured.ratio >= first_fitting.TARGET)


def test_a_node_of_partitions_is_allocated_from_by_both_sides() -> None:
    fleet = Fleet()
    put(fleet, *a_partitioned_node(8))
    assert len(fleet.inventory) == 152
    measured = partitioned_node.measure(1)
    assert measured.devices == 19
    assert partitioned_node.row(measured).met is (measured.ratio >= 1)


def test_a_scan_is_measured_against_cel_python() -> None:
    measured = selector_scan.measure(3, selector_scan.cel_python_s())
    assert measured.devices == 30
    assert selector_scan.row(measured).met is measured.met


def test_changes_and_memory_are_measured() -> None:
    changed = slice_change.measure(3)
    assert changed.devices == 30
    assert 0 < changed.median_s <= changed.worst_s
    assert not slice_change.row(changed._replace(median_s=1.0)).met
    assert device_memory.measure_here(50) < 250
    assert not device_memory.row(100, 251.0).met


async def test_an_allocation_counts_from_the_request_that_begins_it_and_is_compared_with_the_schedulers() -> None:
    claims = PromptAllocations()
    (figures,) = await claim_allocation.measure([claims], claims.prepare, claims.begin, 80)
    assert len(claims.at_s) == 80
    assert (len(figures.idle_s), figures.p50_s < 1, figures.rate > 0) == (20, True, True)
    slow = figures._replace(idle_s=[1.0] * 99 + [2.0], rate=80.0)
    quick = figures._replace(idle_s=[0.5] * 99 + [1.5], rate=120.0)
    assert (slow.p50_s, slow.p99_s) == (1.0, 1.0)
    slow_pods, quick_pods = claim_allocation.PodFigures(slow, slow), claim_allocation.PodFigures(quick, quick)
    good = claim_allocation.Measured(slow_pods, quick_pods, quick, quick_pods, quick_pods)
    bad = claim_allocation.Measured(quick_pods, slow_pods, slow, slow_pods, slow_pods)
    assert [row.met for row in claim_allocation.rows(good, "some")] == [True] * 6
    assert [row.met for row in claim_allocation.rows(bad, "some")] == [False] * 6


def test_an_allocation_counts_for_the_pod_that_the_claim_was_made_for() -> None:
    assert claim_allocation.allocated(a_claim("pod-gpu-x7", made_for=("pod", "gpu"))) == ""
    assert claim_allocation.allocated(a_claim("pod-gpu-x7", on=["node-0/gpu-0"], made_for=("pod", "gpu"))) == "pod"
    assert claim_allocation.allocated(a_claim("alone", on=["node-0/gpu-0"])) == "alone"


class PromptAllocations:
    """Allocates immediately what is begun, but only if it was prepared."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}
        self._prepared: set[str] = set()

    async def prepare(self, name: str) -> None:
        self._prepared.add(name)

    async def begin(self, name: str) -> None:
        self._prepared.remove(name)
        self.at_s[name] = time.monotonic()

    async def until(self, enough: Callable[[], bool]) -> None:
        assert enough()
