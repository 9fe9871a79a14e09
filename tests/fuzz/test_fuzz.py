"""Nothing that reads untrusted text hangs or fails unexpectedly: a short fuzz of each target in every run.

`python -m tests.fuzz` runs longer, with other texts; DRACO_SEED selects the texts.
"""

import time

import pytest

from tests.differential.runs import SEED
from tests.fuzz.run import Broken, Target, fuzz
from tests.fuzz.targets import TARGETS

SECONDS = 0.5


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_every_text_is_answered(target: Target) -> None:
    done = fuzz(target, seconds=SECONDS, seed=SEED)
    assert done.texts > len(target.corpus)


def test_a_run_reports_the_text_that_an_exception_came_from() -> None:
    def fails(text: str) -> str:
        if "!" in text:
            raise KeyError(text)
        return "fine"

    with pytest.raises(Broken, match="DRACO_SEED=1") as broken:
        fuzz(Target("fails", fails, ["a"], ["!"]), seconds=30.0, seed=1)
    assert "!" in broken.value.text


def test_a_run_reports_the_text_that_is_not_answered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.run.PATIENCE_S", 0.05)

    def hangs(_text: str) -> str:
        while True:
            time.monotonic()

    with pytest.raises(Broken) as broken:
        fuzz(Target("hangs", hangs, ["stuck"], ["!"]), seconds=1.0, seed=1)
    assert isinstance(broken.value.__cause__, TimeoutError)


def test_what_was_answered_in_a_new_way_is_built_on() -> None:
    def counts(text: str) -> str:
        return "ab"[: min(2, text.count("!"))] or "none"

    done = fuzz(Target("counts", counts, ["x"], ["!"]), seconds=0.5, seed=1)
    assert done.kinds == 3
