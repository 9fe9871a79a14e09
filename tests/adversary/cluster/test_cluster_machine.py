"""What the cluster machine draws, writes down and shrinks."""

from pathlib import Path

import pytest

from tests.adversary.cluster import machine
from tests.adversary.cluster.actions import Action, Chooser
from tests.adversary.cluster.observer.observer import Violation


def test_the_same_seed_draws_the_same_actions() -> None:
    one, other = Chooser(7), Chooser(7)
    assert [one.next() for _ in range(500)] == [other.next() for _ in range(500)]


def test_every_kind_of_action_is_drawn() -> None:
    chooser = Chooser(1)
    kinds = {chooser.next().kind for _ in range(5000)}
    wanted = {"tenant", "hostile", "admin", "rule", "maintenance", "policy", "hardware", "kill"}
    assert {kind.partition(":")[0] for kind in kinds} >= wanted
    assert "feature switched off" in kinds


def test_actions_that_are_written_down_are_read_again(tmp_path: Path) -> None:
    chooser = Chooser(3)
    drawn = [chooser.next() for _ in range(200)]
    machine.save(drawn, tmp_path / "actions.json")
    assert machine.load(tmp_path / "actions.json") == drawn


def test_a_record_is_shrunk_to_what_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [Action("kill: agent", {"n": 3}), Action("kill: etcd", {"n": 11})]
    actions = [Action("tenant", {"n": number}) for number in range(20)]
    actions[3], actions[11] = needed

    def replay(fewer: list[Action], **_: object) -> machine.Report:
        broken = [Violation("", "held twice", "", ())] if all(each in fewer for each in needed) else []
        return machine.Report(None, Path(), violations=broken)

    monkeypatch.setattr(machine, "replay", replay)
    assert machine.shrink(actions, "held twice", say=lambda _: None, attempts=200) == needed
