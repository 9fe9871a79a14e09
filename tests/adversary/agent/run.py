"""A hunt with the agent machine: it plays random sequences for a while and reports what they did.

Owns time, seeds, and shrinking a failing sequence. A sequence is text, one step per line, so a finding can be stored as a file
and replayed.
"""

import itertools
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.adversary.agent.machine import AgentMachine, at_once, fired
from tests.adversary.agent.node import Over

STEPS = 40
"""Steps in one sequence, at most."""
ROUND = 10
"""Sequences per round. Each round has its own seed, and the time is checked between rounds."""
SHRINKING_S = 240.0


class Done(NamedTuple):
    """What a hunt did."""

    seed: int
    sequences: int
    steps: int
    seconds: float
    fired: dict[str, int]
    at_once: dict[int, int]
    """How many accidents happened while this many claims were prepared."""
    findings: int = 0

    @property
    def claims(self) -> str:
        """How claims fared, and how many were prepared when accidents happened."""
        counts = {what: self.fired.get(what, 0) for what in ("prepare: done", "prepare again: done", "unprepare: done")}
        several = sum(count for claims, count in self.at_once.items() if claims > 1)
        return (
            f"claims: {', '.join(f'{what} {count}' for what, count in counts.items())}; with several prepared {several} of "
            f"{sum(self.at_once.values())} accidents, with {max(self.at_once, default=0)} at most"
        )

    @property
    def summary(self) -> str:
        """The result in one line."""
        found = "no finding" if not self.findings else f"{self.findings} finding"
        return f"agent machine, seed {self.seed}: {self.steps} steps in {self.sequences} sequences, {self.seconds:.0f} s: {found}"

    def __str__(self) -> str:
        most = sorted(self.fired.items(), key=lambda pair: -pair[1])
        rules = "\n".join(f"  {count:8} {what}" for what, count in most)
        return f"{rules}\n{self.claims}\n{self.summary}"


class Finding(Exception):
    """A sequence that breaks a promise."""

    def __init__(self, what: BaseException, steps: Sequence[str], done: Done) -> None:
        sequence = "\n".join(steps)
        super().__init__(f"{what!r} (seed {done.seed}, after {done.steps} steps of hunting):\n{sequence}")
        self.steps = steps
        self.done = done


class OutOfTurn(Exception):
    """A step that the machine could not have taken here, so the sequence proves nothing."""


def hunt(
    *, seed: int, seconds: float | None = None, sequences: int | None = None, machine: type[AgentMachine] = AgentMachine
) -> Done:
    """Hunt for this many seconds or sequences. Raises Finding with a shrunk sequence.

    When the time is over, the hunt ends after the current step.
    """
    fired.clear()
    at_once.clear()
    began = time.monotonic()
    until = None if seconds is None else began + seconds

    def done(findings: int = 0) -> Done:
        return Done(
            seed, fired["sequences"], fired["steps"], time.monotonic() - began, dict(fired), dict(at_once), findings
        )

    for number in itertools.count():
        if number and ((until and time.monotonic() > until) or (sequences and number * ROUND >= sequences)):
            break
        hidden = {"_hypothesis_internal_use_seed": seed * 1_000_003 + number, "until": until}
        try:
            run_state_machine_as_test(
                type("AgentMachine", (machine,), hidden),
                settings=settings(
                    max_examples=ROUND,
                    stateful_step_count=STEPS,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    report_multiple_bugs=False,
                    print_blob=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        except Over:
            break
        except Exception as error:
            found = done(findings=1)
            raise Finding(error, shrunk(_steps(error), error, machine), found) from error
    return done()


def play(steps: Sequence[str], machine: Callable[[], AgentMachine] = AgentMachine, *, strictly: bool = False) -> None:
    """Play a sequence: check all promises after each step, and those at rest at the end.

    `strictly`: raise OutOfTurn for a step that the machine could not have taken there.
    """
    state = machine()
    try:
        for step in steps:
            if strictly:
                _check_turn(state, step)
            eval(step, {"state": state})
            state.promises()
    except BaseException:
        state.close()
        raise
    state.teardown()


def _check_turn(state: AgentMachine, step: str) -> None:
    name = step.removeprefix("state.").partition("(")[0]
    conditions = [one for rule in state.rules if rule.function.__name__ == name for one in rule.preconditions]
    if not all(one(state) for one in conditions if not getattr(one, "paces", False)):
        raise OutOfTurn(step)


def shrunk(
    steps: Sequence[str],
    what: BaseException,
    machine: Callable[[], AgentMachine] = AgentMachine,
    seconds: float = SHRINKING_S,
) -> list[str]:
    """Leave out steps for as long as the sequence fails in the same way. The machine could have taken the remaining steps."""
    left, kind = list(steps), _kind(what)
    until = time.monotonic() + seconds
    size = len(left)
    while size and time.monotonic() < until:
        at, before = 1, len(left)
        while at < len(left) and time.monotonic() < until:
            fewer = left[:at] + left[at + size :]
            if _failure(fewer, machine) == kind:
                left = fewer
            else:
                at += size
        size = size // 2 if len(left) == before else size
    return left


def _failure(steps: Sequence[str], machine: Callable[[], AgentMachine]) -> str:
    try:
        play(steps, machine, strictly=True)
    except OutOfTurn:
        return ""
    except Exception as error:  # noqa: BLE001 - any exception may be the same failure
        return _kind(error)
    return ""


def _kind(error: BaseException) -> str:
    """A failure's type and message without UUIDs and numbers."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__ + re.sub(r"[0-9a-f-]{20,}|\d+", "*", str(error).partition("\n")[0])[:80]


def _steps(error: BaseException) -> list[str]:
    """The steps of the failed sequence, from hypothesis' notes."""
    lines: list[str] = []
    with suppress(AttributeError):
        lines = [line for note in error.__notes__ for line in note.splitlines()]
    return [
        line
        for line in lines
        if line.startswith("state.") and not line.startswith(("state.promises", "state.teardown"))
    ]
