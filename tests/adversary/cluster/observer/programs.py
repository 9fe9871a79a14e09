"""The laws of programs: none ends unless it was killed, and none logs an error of its own.

Owns reading the processes and their logs. Starts and ends nothing.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.adversary.cluster.observer.suspicion import Suspicion

EXPECTED_ERRORS = frozenset(
    {"election.lost", "election.body_did_not_end", "operator.leadership_lost", "reconcile.failed"}
)
"""Expected errors after an outage of the API server, a suspension, or a lack of processors: a leader cannot know whether it still
leads, and writes fail."""
LOST = "election.lost"
HELD = "loop.held"
"""Explains why a program was late; quoted with the resulting error."""
OWN_FAULTS = frozenset({"allocation.late", "allocation.not_woken"})
"""Events of work that an operator should have done a minute ago but nothing woke it. Always wrong, at any level."""
FACTS = frozenset({"driver.mismatch", "gpu.fault"})
"""Errors of the hardware or the node's driver, correctly logged as errors."""
OF_SLOW_DRIVERS = frozenset({"nvml.hangs"})
"""Expected if the driver's calls are slow, even if each ends in time."""
EXPECTED_LOGGERS = ("kopf.",)
"""Libraries that log a failed request as an error and retry it."""


@dataclass
class Program:
    """One running process and how far its log has been read."""

    name: str
    pid: int
    log: Path
    read: int = 0
    ended: bool = False
    may_end: bool = False
    leaves: bool = False
    held: str = ""


class Programs:
    """The programs of the product.

    `excused` returns whether a program lately lacked the API server or a processor, `waits` whether its driver's calls waited
    lately.
    """

    def __init__(self, excused: Callable[[str], bool], waits: Callable[[str], bool] = lambda _: False) -> None:
        self._excused = excused
        self._waits = waits
        self._programs: dict[str, Program] = {}

    def started(self, name: str, pid: int, log: Path) -> None:
        """A program was started. Earlier lines of its log are from a previous run."""
        self._programs[name] = Program(name, pid, log, read=log.stat().st_size if log.exists() else 0)

    def killed(self, name: str) -> list[Suspicion]:
        """A program is about to be killed deliberately: judge its last log lines, but not its end."""
        program = self._programs.pop(name, None)
        return list(self._said(program)) if program else []

    def may_end(self, name: str) -> None:
        """A program was suspended: when resumed, it may find that it lost its lease, and must end."""
        if name in self._programs:
            self._programs[name].may_end = True

    def told_to_end(self, name: str) -> None:
        """A program was told to end: it finishes its work first and must log nothing wrong meanwhile."""
        if name in self._programs:
            self._programs[name].leaves = True

    def pid(self, name: str) -> int | None:
        """A program's process ID; None if it was not started."""
        return self._programs[name].pid if name in self._programs else None

    def look(self) -> Iterator[Suspicion]:
        """Violations since the last look, each reported once."""
        for program in list(self._programs.values()):
            yield from self._said(program)
            if not program.leaves and not program.ended and not _runs(program.pid):
                program.ended = True
                if program.name.startswith("operator") and self._is_excused(program):
                    continue  # it could not renew its lease: it must end and is restarted
                text = f"{program.name} (pid {program.pid}) ended by itself: see {program.log}"
                yield Suspicion("program ended", f"{program.name} {program.pid}", text)

    def ended(self) -> list[str]:
        """Programs that ended without being killed."""
        return [each.name for each in self._programs.values() if each.ended]

    def _is_excused(self, program: Program) -> bool:
        return program.may_end or self._excused(program.name)

    def _said(self, program: Program) -> Iterator[Suspicion]:
        try:
            with program.log.open("rb") as file:
                file.seek(program.read)
                text = file.read()
        except OSError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        program.read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            said = _parsed(line)
            if said.get("event") == HELD:
                program.held = f"; before that: {line[:300]}"
            wrong = _wrong(said, line)
            if wrong and _may_be_excused(said) and self._is_excused(program):
                program.may_end = program.may_end or wrong == LOST  # it may still take a few seconds to end
                continue
            if wrong and not (wrong in OF_SLOW_DRIVERS and self._waits(program.name)):
                yield Suspicion(
                    "error logged", f"{program.name} {wrong}", f"{program.name} logged: {line[:2000]}{program.held}"
                )


def _parsed(line: str) -> dict[str, Any]:
    """Parse a log line; empty if it is not a structured one."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _wrong(said: dict[str, Any], line: str) -> str:
    """Why a log line is wrong; empty if it is not."""
    if not said:
        return "a traceback" if line.startswith("Traceback (most recent call last)") else ""
    event = str(said.get("event", ""))
    if event in OWN_FAULTS:
        return event
    if event in FACTS and "exception" not in said:
        return ""
    if "exception" in said or said.get("level") in {"error", "critical"}:
        return event
    return ""


def _may_be_excused(said: dict[str, Any]) -> bool:
    return said.get("event") in EXPECTED_ERRORS or str(said.get("logger", "")).startswith(EXPECTED_LOGGERS)


def _runs(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"
