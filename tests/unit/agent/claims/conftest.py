"""Fixtures of claims on one simulated node; each module makes its `path`, the state of the node's GPUs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.mps import MpsNode


@pytest.fixture
def mps(path: Path) -> Iterator[MpsNode]:
    """The node's MPS, with its keeper."""
    with MpsNode(path.parent) as made:
        yield made
