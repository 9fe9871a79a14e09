"""Third-party programs that run beside a control plane during the tests, and end with them."""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import DIES_WITH_THE_TESTS


class Daemon:
    """A running program. Its output is in `log`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    def check(self) -> None:
        """If it has ended, fail with its last output."""
        if self._process.poll() is not None:
            raise AssertionError(f"{self.log.stem} ended with {self._process.returncode}:\n{self.said()}")

    def said(self, lines: int = 30) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def running(program: Path, arguments: Sequence[str], *, environ: Mapping[str, str], folder: Path) -> Iterator[Daemon]:
    """Run a program during the block; `folder` is its working directory, and holds its log."""
    log = folder / f"{program.name}.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*DIES_WITH_THE_TESTS, str(program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environ),
        ) as process,
    ):
        try:
            yield Daemon(process, log)
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def eventually(check: Callable[[], bool], *, what: str, within_s: float = 60.0) -> None:
    """Wait until `check` is true."""
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.1)
