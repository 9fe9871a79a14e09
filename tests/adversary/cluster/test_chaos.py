"""The run of a fixed shape: its draws, and a small run on a whole cluster."""

from collections import Counter
from pathlib import Path

import pytest

from tests.adversary.cluster import chaos, machine
from tests.adversary.cluster.chaos import SPARE, Chaos, Shape

SEED = 4711
SMALL = Shape(kills=6, maintenances=8, faults=10, seconds=15.0)


def test_a_run_has_its_shape_and_its_length() -> None:
    shape = Shape(kills=100, maintenances=50, faults=200, seconds=360.0)
    drawn = list(Chaos(SEED).run(shape))
    kinds = Counter(each.kind for each in drawn)
    assert kinds["kill: operator"] + kinds["kill: agent"] == shape.kills * SPARE
    assert kinds["maintenance: asked for"] == shape.maintenances
    others = ("hardware: healed", "hardware: reboot")
    broken = sum(count for kind, count in kinds.items() if kind.startswith("hardware") and kind not in others)
    assert broken == shape.faults * SPARE
    assert sum(each.wait_s for each in drawn) == pytest.approx(shape.seconds, rel=0.05)
    assert drawn[-1].kind == "all is given back"
    assert drawn == list(Chaos(SEED).run(shape)), "the same seed draws the same"


def test_each_request_is_asked_for_before_anything_becomes_of_it() -> None:
    seen = set()
    for each in Chaos(SEED).run(Shape(10, 50, 10, 60.0)):
        if each.kind == "maintenance: asked for":
            seen.add(each.arguments["request"]["metadata"]["name"])
        elif "title" in each.arguments and each.kind.startswith("maintenance"):
            assert each.arguments["title"] in seen


def test_less_than_was_asked_for_is_said() -> None:
    report = machine.Report(1, Path(), actions={"maintenance: asked for": 50}, seen={"programs killed": 99.0})
    assert chaos.missing(report, Shape(100, 50, 0, 1.0)) == ["only 99 programs killed of 100"]


def test_a_small_run_breaks_no_law(tmp_path_factory: pytest.TempPathFactory) -> None:
    report = chaos.run(SMALL, SEED, folder=tmp_path_factory.mktemp("chaos"))
    print(report)  # noqa: T201 - pytest shows it when the test fails
    assert not report.violations
    assert not chaos.missing(report, SMALL)
