"""Runs a program of the node's driver or of the image as another process, within bounds of time and output.

Its arguments are ours; nothing is passed through a shell. Owns no knowledge of any program.
"""

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from draco.resources.errors import DracoError
from draco.resources.texts import reason_of

DEADLINE_S: Final = 10.0
MOST_BYTES: Final = 4 << 20
"""A CDI spec has some tens of thousands."""


class ProgramFailed(DracoError):
    """A program could not be run, did not end in time, or failed with `status`; `said` is what it wrote, as text."""

    def __init__(self, sentence: str, *, status: int | None = None, said: str = "") -> None:
        super().__init__(sentence)
        self.status = status
        self.said = said


class ProgramSilent(ProgramFailed):
    """A program did not end in time."""


def run(
    command: Sequence[str],
    *,
    called: str,
    environment: Mapping[str, str] | None = None,
    given: bytes | None = None,
    within_s: float | None = None,
) -> bytes:
    """The program's output. `called` names it in sentences; it reads `given`, some bytes at most. Raises ProgramFailed."""
    limit_s = DEADLINE_S if within_s is None else within_s
    try:
        process = subprocess.Popen(  # noqa: S603 - a program of the node's or of our image, its arguments are ours
            command,
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else {**os.environ, **environment},
        )
    except OSError as error:
        raise ProgramFailed(f"{called} cannot be run ({error.strerror})") from error
    with process:
        try:
            if process.stdin is not None and given is not None:
                with suppress(BrokenPipeError):  # it ended without reading, and says why
                    process.stdin.write(given)
                    process.stdin.close()
            answer, complaint = _said_by(process, called, limit_s)
        except subprocess.TimeoutExpired as error:
            raise ProgramSilent(f"{called} did not answer within {limit_s:.0f} s") from error
        finally:
            process.kill()  # no effect on one that has ended
    if process.returncode != 0:
        lines = complaint.decode(errors="replace").strip().splitlines()
        why = reason_of(lines[-1]) if lines else f"exit status {process.returncode}"
        said = (answer + complaint).decode(errors="replace")
        raise ProgramFailed(f"{called} failed ({why})", status=process.returncode, said=said)
    return answer


def _said_by(process: subprocess.Popen[bytes], called: str, within_s: float) -> tuple[bytes, bytes]:
    """A process's output and errors until it ends. Raises TimeoutExpired."""
    deadline = time.monotonic() + within_s
    said = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr) if stream is not None}
    with selectors.DefaultSelector() as selector:
        for stream in said:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                chunk = os.read(key.fd, 1 << 16)
                said[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
            if max(map(len, said.values())) > MOST_BYTES:
                raise ProgramFailed(f"{called} wrote more than {MOST_BYTES >> 20} MiB")
            if time.monotonic() >= deadline:
                break
    process.wait(max(0.0, deadline - time.monotonic()))
    answer, complaint = said.values()
    return bytes(answer), bytes(complaint)
