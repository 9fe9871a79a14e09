"""Simulated boards answer as the real ones whose answers `draco_local.simulator.survey` recorded."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from draco_local.simulator.compare import differing, is_compared, simulated_survey

SURVEYS = Path(__file__).parent / "surveys"
BOARDS = {"h100-80gb": "H100-80GB", "h200-141gb": "H200-141GB"}


def recorded(name: str) -> dict[str, Any]:
    return json.loads((SURVEYS / f"{name}.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", BOARDS)
def test_a_simulated_board_answers_as_a_real_one(name: str, tmp_path: Path) -> None:
    real = recorded(name)
    simulated = simulated_survey(tmp_path, BOARDS[name], real)

    assert [str(each) for each in differing(0, real, simulated)] == []
    assert real.keys() == simulated.keys()
    assert sum(map(is_compared, real)) > 500


def test_every_survey_is_compared() -> None:
    assert {each.stem for each in SURVEYS.iterdir()} == BOARDS.keys()


@pytest.mark.parametrize("name", BOARDS)
def test_a_survey_tells_nothing_of_one_board_alone(name: str) -> None:
    real = recorded(name)

    assert not re.search(r"(GPU|MIG)-[0-9a-f]{8}", (SURVEYS / f"{name}.json").read_text())
    assert real["nvmlDeviceGetSerial"] == real["nvmlDeviceGetUUID"] == "masked"
    assert real["nvmlDeviceGetPciInfo"]["busId"] == "masked"
