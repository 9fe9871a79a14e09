"""One run of the differential tests: its seed, its size, and what it found.

Owns the settings, which come from the environment: DRACO_SEED selects other cases, DRACO_EXAMPLES sets how many, as in
`DRACO_SEED=$RANDOM DRACO_EXAMPLES=100000 make test PYTEST_ARGS=tests/differential`. By default each run tries the same cases, so
that a change fails only for what it did.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.side_by_side import REPORTS

SEED = int(os.environ.get("DRACO_SEED") or 20261122)
KEPT = Path(__file__).parent / "kept"


def size(examples: int, *phases: Phase) -> settings:
    """Settings with this many examples by default. A run is repeated by its seed, so no database keeps examples."""
    return settings(
        max_examples=int(os.environ.get("DRACO_EXAMPLES") or examples),
        deadline=None,
        database=None,
        phases=phases or (Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )


class Tally:
    """What a test compared, counted by kind of answer."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._start = time.monotonic()
        self.answers: Counter[str] = Counter()

    def report(self) -> None:
        """Add what was compared to the report of the run."""
        total = sum(self.answers.values())
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.answers.items()))
        seconds = time.monotonic() - self._start
        REPORTS.append(f"{total} {self._what} compared in {seconds:.0f} s with DRACO_SEED={SEED}: {kinds}")


def kept(folder: str) -> list[Any]:
    """The cases that once differed, as parameters named after their files."""
    return [pytest.param(json.loads(path.read_text()), id=path.stem) for path in sorted((KEPT / folder).glob("*.json"))]
