"""A machine of its own for each test."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from draco_local.cluster.process import Processes
from tests.component.cluster.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="draco-test-") as runtime:  # short, because of the sockets in it
        used = Machine(tmp_path, Path(runtime))
        yield used
        if used.clusters.exists():
            for folder in used.clusters.iterdir():
                if folder.is_dir():
                    Processes(folder).stop_strays()
