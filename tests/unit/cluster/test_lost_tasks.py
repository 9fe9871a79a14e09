"""The check that every asynchronous test runs under."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
TESTS = """
import asyncio
import pytest
from tests.conftest import _tasks_are_checked, no_task_left_behind  # noqa: F401 - fixtures

kept = []

async def test_leaves_one():
    kept.append(asyncio.create_task(asyncio.sleep(100), name="lost"))

async def test_awaits_its_own():
    task = asyncio.create_task(asyncio.sleep(100))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

@pytest.fixture
async def background():
    task = asyncio.create_task(asyncio.sleep(100))
    yield
    task.cancel()

async def test_asks_for_one_that_is_cancelled_at_the_end(background):
    pass

def test_is_not_asynchronous():
    pass
"""


@pytest.mark.exhaustive
def test_a_test_that_leaves_a_task_behind_fails_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "test_tasks.py"
    file.write_text(TESTS)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        REPOSITORY / "pyproject.toml",
        "--rootdir",
        tmp_path,
        "-q",
        file,
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert "4 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR at teardown of test_leaves_one" in done.stdout
    assert "tasks left running: <coroutine object sleep" in done.stdout
