"""A hunt with the agent machine: sequence after sequence for a while, and a report of what the sequences did.

Owns time, seeds, and making a sequence that fails short. A sequence is text, one step a line, so that a finding can be kept as a
file and played again.
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
"""In one sequence, at most."""
ROUND = 10
"""Sequences between two looks at the time; each round has a seed of its own."""
SHRINKING_S = 240.0


class Done(NamedTuple):
    """What a hunt did."""

    seed: int
    sequences: int
    steps: int
    seconds: float
    fired: dict[str, int]
    at_once: dict[int, int]
    """How often something happened while so many claims were prepared."""
    findings: int = 0

    @property
    def claims(self) -> str:
        """What became of claims, and how many were at stake when something happened."""
        counts = {what: self.fired.get(what, 0) for what in ("prepare: done", "prepare again: done", "unprepare: done")}
        several = sum(count for claims, count in self.at_once.items() if claims > 1)
        return (
            f"claims: {', '.join(f'{what} {count}' for what, count in counts.items())}; with several prepared {several} of "
            f"{sum(self.at_once.values())} accidents, with {max(self.at_once, default=0)} at most"
        )

    @property
    def summary(self) -> str:
        """One line."""
        found = "no finding" if not self.findings else f"{self.findings} finding"
        return f"agent machine, seed {self.seed}: {self.steps} steps in {self.sequences} sequences, {self.seconds:.0f} s: {found}"

    def __str__(self) -> str:
        most = sorted(self.fired.items(), key=lambda pair: -pair[1])
        rules = "\n".join(f"  {count:8} {what}" for what, count in most)
        return f"{rules}\n{self.claims}\n{self.summary}"


class Finding(Exception):
    """A sequence after which something is not as promised."""

    def __init__(self, what: BaseException, steps: Sequence[str], done: Done) -> None:
        sequence = "\n".join(steps)
        super().__init__(f"{what!r} (seed {done.seed}, after {done.steps} steps of hunting):\n{sequence}")
        self.steps = steps
        self.done = done


class OutOfTurn(Exception):
    """A step that the machine would not have taken here: a sequence with it proves nothing."""


def hunt(
    *, seed: int, seconds: float | None = None, sequences: int | None = None, machine: type[AgentMachine] = AgentMachine
) -> Done:
    """Try for so long, or so many sequences. Finding, with the shortest sequence that is found quickly.

    When the time is over the hunt ends after the step that it is at.
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
    """Play a sequence, with all promises checked after each step, and the rest at its end.

    `strictly`: OutOfTurn for a step that the machine would not have taken where it stands.
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
    """The steps without those that it takes to fail in the same way. What is left could have been done by the machine."""
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
    except Exception as error:  # noqa: BLE001 - whatever it is, it may be the same
        return _kind(error)
    return ""


def _kind(error: BaseException) -> str:
    """A failure without names and numbers."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__ + re.sub(r"[0-9a-f-]{20,}|\d+", "*", str(error).partition("\n")[0])[:80]


def _steps(error: BaseException) -> list[str]:
    """The steps of the sequence that failed, from what hypothesis notes."""
    lines: list[str] = []
    with suppress(AttributeError):
        lines = [line for note in error.__notes__ for line in note.splitlines()]
    return [
        line
        for line in lines
        if line.startswith("state.") and not line.startswith(("state.promises", "state.teardown"))
    ]
