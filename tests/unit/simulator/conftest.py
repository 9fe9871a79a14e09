"""Simulated nodes for the tests of this folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from draco.simulator.nvml import SimulatedNvml
from draco.simulator.state import create

StateFile = Callable[..., Path]


@pytest.fixture
def a_state_file(tmp_path: Path) -> StateFile:
    """Makes the state file of a node: `a_state_file(board="T4", gpus=2)`."""

    def make(board: str = "H100-80GB", gpus: int = 8) -> Path:
        path = tmp_path / f"{board}.json"
        create(path, board=board, gpus=gpus, node_name="node-1")
        return path

    return make


@pytest.fixture
def path(a_state_file: StateFile) -> Path:
    """The state file of a node with eight H100."""
    return a_state_file()


@pytest.fixture
def nvml(path: Path) -> SimulatedNvml:
    """An initialised session on that node."""
    return opened(path)


def opened(path: Path) -> SimulatedNvml:
    library = SimulatedNvml(path)
    library.nvmlInit()
    return library
