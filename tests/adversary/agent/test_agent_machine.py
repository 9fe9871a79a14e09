"""The agent machine in each run of the tests: what it found once, and a short hunt for what it has not found yet.

The hunt has the same seed in each run, so that a change is not held up by what it did not do. ADVERSARY_SEED gives it another;
`make adversary` goes on for longer, with a seed of its own.
"""

import os
from pathlib import Path

import pytest

from tests.adversary.agent.run import hunt, play

KEPT = sorted((Path(__file__).parent / "kept").glob("*.txt"))
SECONDS = 25.0
SEED = int(os.environ.get("ADVERSARY_SEED") or 201)


def steps_of(kept: Path) -> list[str]:
    """The steps of a sequence that was kept. What stands before them says what was wrong."""
    return [line for line in kept.read_text().splitlines() if line.startswith("state.")]


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.stem)
def test_what_was_found_once_is_not_found_again(kept: Path) -> None:
    play(steps_of(kept))


def test_nothing_is_found_in_a_short_hunt(capsys: pytest.CaptureFixture[str]) -> None:
    done = hunt(seconds=SECONDS, seed=SEED)
    with capsys.disabled():
        told = f"ADVERSARY_SEED={SEED}: {done.sequences} sequences, {done.steps} steps; {done.claims}"
        print(f" [{told}] ", end="")  # noqa: T201 - how much was tried is part of the result
    for needed in ("prepare: done", "unprepare: done", "reboot"):
        assert done.fired.get(needed), f"nothing like {needed!r} happened, so nothing was tried"
