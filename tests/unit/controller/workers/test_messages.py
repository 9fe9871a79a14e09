"""Messages through the workers' pipes: read piece by piece, and refused if no honest worker would have written them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from draco.controller.workers.fleet_process import FleetProcess, _Child
from draco.controller.workers.messages import (
    MOST_ANSWER_BYTES,
    Answer,
    AskQuestions,
    CheckClaim,
    ClaimProblems,
    Failed,
    FrameReader,
    NotAMessage,
    NotReached,
    OutOfMemory,
    OverBudget,
    Reply,
    SkippedObject,
    frame,
    inward,
    outward,
)
from draco.controller.workers.process import FleetProcessHandle, ProcessEnded
from draco.resources.api.meta import ObjectKey
from tests.builders import a_claim

ASK = AskQuestions([(7, CheckClaim(a_claim("claim")))], 0, 1.0, 1.0, False)


def test_messages_are_read_in_whatever_pieces_they_come() -> None:
    said = [frame(Reply(number, ClaimProblems([]), 1, 0.0)) for number in range(3)]
    frames = FrameReader()
    bodies = [body for at in range(len(b"".join(said))) for body in frames.feed(b"".join(said)[at : at + 1])]
    assert [outward(body).number for body in bodies] == [0, 1, 2]  # type: ignore[union-attr]


def test_a_message_that_says_that_it_is_too_long_is_not_waited_for() -> None:
    frames = FrameReader(most=100)
    assert list(frames.feed((100).to_bytes(4, "big"))) == []
    with pytest.raises(NotAMessage, match="a message of 101 bytes is announced; none has more than 100"):
        list(FrameReader(most=100).feed((101).to_bytes(4, "big")))


def test_what_is_no_message_is_said_to_be_none() -> None:
    with pytest.raises(NotAMessage, match="this is not a message"):
        inward(b"\xc1")
    with pytest.raises(NotAMessage, match="this is not a message"):
        outward(frame(ASK)[4:])


class Worker:
    """A fleet process with one child that answers; the test writes the child's messages."""

    def __init__(self) -> None:
        self._said, outbox = os.pipe()
        self._inbox, self._operator = os.pipe()
        answers, self._answers = os.pipe()
        self._questions, questions = os.pipe()
        self.child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.fleet = FleetProcess(self._inbox, outbox, 1)
        asked = _Child(self.child.pid, 3, questions, answers)
        asked.row.extend((7, 8))
        self.fleet._children[answers] = asked
        self.fleet._selector.register(answers, 1)
        self._asked, self._outbox = asked, outbox

    def says(self, words: bytes) -> list[Any]:
        os.write(self._answers, words)
        self.fleet._hear(self._asked)
        return [outward(body) for body in FrameReader().feed(os.read(self._said, 1 << 16))]

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        for each in (self._said, self._outbox, self._inbox, self._operator, self._answers, self._questions):
            os.close(each)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((MOST_ANSWER_BYTES + 1).to_bytes(4, "big"), "bytes is announced"),
        ((3).to_bytes(4, "big") + b"abc", "is not a message"),
        (frame(Reply(8, ClaimProblems([]), 3, 0.0)), "it answers what it was not asked"),  # not asked yet
        (frame(SkippedObject("Node", ObjectKey("", "n"), "e")), "it answers what it was not asked"),
    ],
    ids=["too long", "nonsense", "another's question", "what it may not say"],
)
def test_a_child_that_says_what_no_child_says_is_ended_and_its_question_failed(
    worker: Worker, words: bytes, why: str
) -> None:
    said, behind = worker.says(words)
    assert (said.number, said.version) == (7, 3)
    assert isinstance(said.answer, Failed)
    assert why in said.answer.why
    assert behind == Reply(8, NotReached(), 3, 0.0), "what it had not begun is asked elsewhere"
    assert not worker.fleet._children


def test_a_childs_answers_are_passed_on(worker: Worker) -> None:
    for number in (7, 8):
        assert worker.says(frame(Reply(number, ClaimProblems([]), 3, 0.5))) == [
            Reply(number, ClaimProblems([]), 3, 0.5)
        ]
    assert worker.fleet._children


@pytest.mark.parametrize("answer", [OverBudget(None, 8), OutOfMemory(), Failed("it met a fault")])
def test_what_stands_behind_an_answer_that_ends_its_child_is_asked_elsewhere(worker: Worker, answer: Answer) -> None:
    assert worker.says(frame(Reply(7, answer, 3, 0.5))) == [Reply(7, answer, 3, 0.5), Reply(8, NotReached(), 3, 0.0)]
    assert not worker.fleet._children


async def test_an_operator_whose_worker_says_what_is_no_message_starts_another() -> None:
    words = asyncio.StreamReader()
    words.feed_data(b"\xff\xff\xff\xff")
    process: Any = SimpleNamespace(stdin=object(), stdout=words)
    with pytest.raises(ProcessEnded, match="bytes is announced"):
        _ = [said async for said in FleetProcessHandle(process).replies()]
