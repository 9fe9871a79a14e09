"""A hunt with the agent machine: sequence after sequence for a while, and a report of what the sequences did.

Owns time, seeds, and making a sequence that fails short. A sequence is text, one step a line, so that a finding can be kept as a
file and played again.
"""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.adversary.agent.machine import AgentMachine, at_once, fired

STEPS = 40
"""In one sequence, at most."""
ROUND = 10
"""Sequences between two looks at the time; each round has a seed of its own."""
SHRINKING_S = 240.0


class Done(NamedTuple):
    """What a hunt did."""

    sequences: int
    steps: int
    seconds: float
    fired: dict[str, int]
    at_once: dict[int, int]
    """How often something happened while so many claims were prepared."""

    @property
    def claims(self) -> str:
        """What became of claims, and how many were at stake when something happened."""
        counts = {what: self.fired.get(what, 0) for what in ("prepare: done", "prepare again: done", "unprepare: done")}
        several = sum(count for claims, count in self.at_once.items() if claims > 1)
        return (
            f"claims: {', '.join(f'{what} {count}' for what, count in counts.items())}; with several prepared {several} of "
            f"{sum(self.at_once.values())} accidents, with {max(self.at_once, default=0)} at most"
        )

    def __str__(self) -> str:
        most = sorted(self.fired.items(), key=lambda pair: -pair[1])
        rules = "\n".join(f"  {count:8} {what}" for what, count in most)
        return (
            f"{self.sequences} sequences, {self.steps} steps in {self.seconds:.0f} s, of which:\n{rules}\n{self.claims}"
        )


class Finding(Exception):
    """A sequence after which something is not as promised."""

    def __init__(self, what: BaseException, steps: Sequence[str], seed: int, done: int) -> None:
        sequence = "\n".join(steps)
        super().__init__(f"{what!r} (seed {seed}, after {done} steps of hunting):\n{sequence}")
        self.steps = steps


def hunt(*, seconds: float, seed: int, machine: type[AgentMachine] = AgentMachine) -> Done:
    """Try for so long. Finding, with the shortest sequence that is found quickly."""
    fired.clear()
    at_once.clear()
    began = time.monotonic()
    rounds = 0
    while not rounds or time.monotonic() < began + seconds:
        made = type("AgentMachine", (machine,), {"_hypothesis_internal_use_seed": seed * 1_000_003 + rounds})
        rounds += 1
        try:
            run_state_machine_as_test(
                made,
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
        except Exception as error:
            done = fired["steps"]
            raise Finding(error, shrunk(_steps(error), error, machine), seed, done) from error
    return Done(rounds * ROUND, fired["steps"], time.monotonic() - began, dict(fired), dict(at_once))


def play(steps: Sequence[str], machine: Callable[[], AgentMachine] = AgentMachine) -> None:
    """Play a sequence, with all promises checked after each step, and the rest at its end."""
    state = machine()
    try:
        for step in steps:
            eval(step, {"state": state})
            state.promises()
    except BaseException:
        state.close()
        raise
    state.teardown()


def shrunk(steps: Sequence[str], what: BaseException, machine: Callable[[], AgentMachine]) -> list[str]:
    """The steps without those that it takes to fail in the same way."""
    left, kind = list(steps), _kind(what)
    until = time.monotonic() + SHRINKING_S
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
        play(steps, machine)
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
