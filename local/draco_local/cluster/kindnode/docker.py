"""One Docker Engine, used through its command line.

Owns how `docker` and `kind` find the engine, and how their errors become a ClusterError. Must not start an engine.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from draco_local.cluster.errors import ClusterError, MissingRequirement

_ANSWERS_WITHIN_S: Final = 20.0
_OTHER_WAYS: Final = ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "KIND_EXPERIMENTAL_PROVIDER")
"""Variables that would select another engine than the one at the given socket."""


@dataclass(frozen=True, slots=True)
class Docker:
    """An engine: the one that `docker` finds on its own, or the one at `socket`.

    If the engine has a network of its own, `enter` goes before a command line, so that the program runs in that network, and the
    ports that the engine publishes are at `address`.
    """

    socket: Path | None = None
    enter: tuple[str, ...] = ()
    address: str = ""

    def answers(self) -> bool:
        """Whether `docker` is installed and an engine answers it."""
        return self.has("info")

    def has_image(self, name: str) -> bool:
        """Whether the engine has an image."""
        return self.has("image", "inspect", name)

    def has(self, *arguments: str) -> bool:
        """Whether a command of `docker` succeeds."""
        if not shutil.which("docker"):
            return False
        try:
            done = self._start(["docker", *arguments], timeout_s=_ANSWERS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def run(self, command: Sequence[str | Path], *, given: Path | None = None) -> str:
        """Run a command, with the file `given` as its standard input; raises ClusterError with the command's error."""
        done = self._start(command, given=given)
        if done.returncode != 0:
            words = [Path(command[0]).name, *map(str, command[1:3])]
            raise ClusterError(f"`{' '.join(words)}` failed: {_reason(done.stderr)}")
        return done.stdout

    def try_run(self, command: Sequence[str | Path], *, timeout_s: float) -> "subprocess.CompletedProcess[str]":
        """Run a command; its exit status is not checked."""
        return self._start(command, timeout_s=timeout_s)

    def _start(
        self, command: Sequence[str | Path], *, given: Path | None = None, timeout_s: float | None = None
    ) -> "subprocess.CompletedProcess[str]":
        if not shutil.which(command[0]):
            raise MissingRequirement(f"There is no program {command[0]} on PATH: install it.")
        with (given or Path(os.devnull)).open("rb") as standard_input:
            return subprocess.run(
                [*self.enter, *map(str, command)],
                stdin=standard_input,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_s,
                env=self._environment(),
            )

    def _environment(self) -> dict[str, str]:
        if self.socket is None:
            return dict(os.environ)
        passed_on = {key: value for key, value in os.environ.items() if key not in _OTHER_WAYS}
        return {**passed_on, "DOCKER_HOST": f"unix://{self.socket}"}


def _reason(output: str) -> str:
    """The line that says what is wrong: kind writes a stack below it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "it wrote nothing")
