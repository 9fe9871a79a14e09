"""Kills of an operator's fleet process, and of its child while it answers a question."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from tests.adversary.cluster import killing, processes
from tests.adversary.cluster.killing import Killing
from tests.adversary.cluster.manifests import Document

FLEET = "draco.controller.workers.fleet_process"
BUSY, IDLE = "print(flush=True)\nwhile True: pass", "print(flush=True)\ninput()"
PARENT = """
import os, subprocess, sys
one = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdin=subprocess.PIPE)
one.wait()
print("ended", flush=True)
input()
"""
"""A program whose child runs the code in its first argument; it reports when the child has ended."""


@contextmanager
def a_program(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", PARENT, *arguments]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == "\n", "its child has started"
        try:
            yield made
        finally:
            for each in (*processes.children(made.pid), made.pid):
                processes.kill(each)


async def kill(what: str, program: "subprocess.Popen[str]") -> Counter[str]:
    cluster: Any = Mock(pid=Mock(return_value=program.pid))
    came_of: Counter[str] = Counter()
    arguments: Document = {}
    await Killing(cluster, Mock(), came_of).kinds[what](arguments)
    return came_of


async def test_the_process_that_holds_the_fleet_is_killed_and_nothing_else_is() -> None:
    with a_program(IDLE) as other:
        assert not await kill("kill: fleet process", other)
    with a_program(IDLE, FLEET) as operator:
        assert await kill("kill: fleet process", operator) == {"fleet processes killed": 1}
        assert operator.stdout is not None
        assert await asyncio.to_thread(operator.stdout.readline) == "ended\n"


async def test_a_child_is_killed_while_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Killing, "_fleets", lambda self: [self._cluster.pid("")])
    with a_program(BUSY) as fleet:
        assert await kill("kill: child with questions", fleet) == {"children killed at a question": 1}
        assert fleet.stdout is not None
        assert await asyncio.to_thread(fleet.stdout.readline) == "ended\n"


async def test_a_child_that_waits_for_questions_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Killing, "_fleets", lambda self: [self._cluster.pid("")])
    monkeypatch.setattr(killing, "CAUGHT_WITHIN_S", 0.1)
    with a_program(IDLE) as fleet:
        (child,) = processes.children(fleet.pid)
        await until_idle(child)
        assert not await kill("kill: child with questions", fleet)
        assert list(processes.children(fleet.pid)) == [child]


async def until_idle(pid: int) -> None:
    async with asyncio.timeout(30.0):
        while processes.is_running(pid):  # noqa: ASYNC110 - another process, which sends no signal
            await asyncio.sleep(0.01)
