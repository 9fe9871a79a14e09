"""Texts written by others in the output of commands: none is interpreted as markup."""

import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from draco.cli import run
from draco.cli.health import command as health
from draco.cli.maintain import screen as maintain_screen
from draco.cli.status import command as status
from draco.cli.tables import print_table, table
from draco.cli.taint import command as taint
from draco.overview.health import GpuHealthView, HealthDocument
from draco.overview.snapshot import Snapshot
from draco.overview.status import status_of
from draco.overview.status_schema import ConditionView, MaintainedView, MaintenanceView, RuleView
from draco.resources.api.maintenance import DrainPolicy

TEXT = "[red]fan[/b] of port :key:"
NOW = datetime(2026, 11, 24, tzinfo=UTC)
SWAP = MaintenanceView(
    name="swap-fan",
    phase="Draining",
    reason=TEXT,
    message=TEXT,
    details=[MaintainedView(device="node-0/gpu-0", claims=[TEXT])],
    conditions=[ConditionView(type="Drained", status="False", message=TEXT)],
)


def answering(answer: object) -> Callable[..., Coroutine[Any, Any, object]]:
    async def read(*_: object) -> object:
        return answer

    return read


def test_a_table_shows_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table("NAME", "[b]COUNT[/b]", numbers=[1])
    rows.add_row(TEXT, "1")
    print_table(rows)
    assert capsys.readouterr().out == f"{'NAME':<{len(TEXT)}}  [b]COUNT[/b]\n{TEXT}  {'1':>12}\n"


def test_no_row_of_a_terminal_is_padded_to_the_width_of_its_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    rows = table("NAME", "DETAIL")
    rows.add_row("one", "a long text")
    print_table(rows)
    assert "DETAIL\x1b" in capsys.readouterr().out


def test_maintain_shows_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    maintain_screen.show_list([SWAP], NOW)
    assert capsys.readouterr().out.endswith(f"{TEXT}\n")
    maintain_screen.show_one(SWAP, None, DrainPolicy.WAIT, NOW)
    assert capsys.readouterr().out.count(TEXT) == 4


def test_health_shows_texts_as_they_are(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GpuHealthView(node="node-0", device="gpu-0", uuid="", product="", health="Unhealthy", message=TEXT)
    monkeypatch.setattr(health, "_read", answering(HealthDocument(gpus=[gpu])))
    assert run(["health"]) == 0
    assert TEXT in capsys.readouterr().out


def test_taint_shows_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    taint._print_table(taint.RuleList(taint_rules=[RuleView(name="bad-fan", taint="key:None", selector=TEXT)]))
    assert TEXT in capsys.readouterr().out


def test_status_shows_texts_as_they_are(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = msgspec.structs.replace(status_of(Snapshot()), maintenance=[SWAP], warnings=[TEXT])
    monkeypatch.setattr(status, "_read", answering(found))
    assert run(["status"]) == 0
    assert capsys.readouterr().out.count(TEXT) == 3
