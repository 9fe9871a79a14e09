"""The process that holds the fleet and forks children that answer questions about it.

Owns the fleet, the children and their deadlines. It takes in changes, each of which costs what it touches, and never evaluates
what users write. It has one thread and opens nothing, so a child that is forked at any moment finds everything as it was; the
memory of the fleet is shared with the children until either writes to it. Children are told of changes as long as these are few,
also while they answer, and take them in afterwards: to fork another one takes longer than most answers.

Started by `process` with a pipe for what is said to it and one for what it says: `python -m
draco.controller.workers.fleet_process MIB`, with the memory that a child may take beyond what it shares.
"""

import gc
import os
import resource
import selectors
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from ctypes import CDLL
from pathlib import Path
from typing import Final, NoReturn

from draco.cel.selector import compile_selector
from draco.controller.workers import messages
from draco.controller.workers.answering import FleetFeed, serve, warm_up

_AT_ONCE: Final = 1 << 20
_IDLE_S: Final = 5.0
"""A child that nobody asks for so long ends: what it has written to is memory of its own."""
_FOLLOWED_BYTES: Final = 32 << 10
"""Of changes that a child may not have read: half of what a pipe takes without waiting for who reads it."""
_PR_SET_PDEATHSIG: Final = 1
_NICER: Final = 5
"""Answers give way to the operator's own work, lease and probes among it."""
_FIRST_TO_KILL: Final = "1000"
"""If memory runs out, the kernel ends a child rather than the operator."""


class _Child:
    """A forked process with the fleet as of `version`."""

    def __init__(self, pid: int, version: int, questions: int, answers: int) -> None:
        self.pid = pid
        self.version = version
        self.questions = questions
        self.answers = answers
        self.unread = 0
        """Bytes of changes that it was told and may not have read."""
        self.unread_before_ask = 0
        """How many of them it will have read once it answers."""
        self.frames = messages.FrameReader(messages.MOST_ANSWER_BYTES)
        self.row: deque[int] = deque()
        """The numbers of the questions that it has still to answer, in this order, ..."""
        self.wall_s = _IDLE_S
        """... and how long each may take."""
        self.until_s = time.monotonic() + _IDLE_S
        """When it is late with its answer, or idle for too long."""


class FleetProcess:
    """The loop: changes and questions in, answers out."""

    def __init__(self, inbox: int, outbox: int, memory_mib: int) -> None:
        self._memory_mib = memory_mib
        self._inbox = inbox
        self._outbox = outbox
        self._feed = FleetFeed(self._say)
        self._frames = messages.FrameReader()
        self._bodies: deque[bytes] = deque()
        self._children: dict[int, _Child] = {}  # by the pipe of their answers
        self._selector = selectors.DefaultSelector()
        self._selector.register(inbox, selectors.EVENT_READ)
        self._is_trimmed = False

    def run(self) -> None:
        """Work until the operator's pipe ends."""
        while True:
            ready = [key.fd for key, _ in self._selector.select(self._patience_s())]
            for fd in ready:
                if fd != self._inbox:
                    self._hear(self._children[fd])
            self._end_the_late()
            if self._bodies:
                self._take(self._bodies.popleft())  # no more is read before this is done: it waits in the pipe
            elif self._inbox in ready:
                data = os.read(self._inbox, _AT_ONCE)
                if not data:
                    return
                self._bodies.extend(self._frames.feed(data))

    def _patience_s(self) -> float | None:
        if self._bodies:
            return 0.0
        due = [child.until_s for child in self._children.values()]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _take(self, body: bytes) -> None:
        message = messages.inward(body)
        if isinstance(message, messages.Changes):
            before = self._feed.version
            self._feed.take(message)
            self._tell_children(before, message, len(body))
            return
        self._give(message)

    def _tell_children(self, before: int, changes: messages.Changes, size: int) -> None:
        """Keep those that know all that was before up to date."""
        for child in list(self._children.values()):
            if child.version != before or child.unread + size > _FOLLOWED_BYTES:
                continue
            try:
                messages.write(child.questions, changes)
            except BrokenPipeError:
                self._lose(child)
                continue
            child.unread += size
            child.version = self._feed.version

    def _give(self, ask: messages.AskQuestions) -> None:
        """Have a child answer that sees what the question is about."""
        idle = [child for child in self._children.values() if not child.row]
        child = next((each for each in idle if each.version >= ask.version), None)
        if child is None:
            for old in idle:
                self._end(old)
            child = self._fork()
        child.row.extend(number for number, _ in ask.questions)
        child.wall_s, child.unread_before_ask = ask.wall_s, child.unread
        child.until_s = time.monotonic() + ask.wall_s
        try:
            messages.write(child.questions, ask)
        except BrokenPipeError:
            self._lose(child)

    def _fork(self) -> _Child:
        theirs, questions = os.pipe()
        answers, mine = os.pipe()
        self._warm_up()
        pid = os.fork()
        if not pid:
            try:
                self._be_a_child(theirs, mine)
            finally:
                os._exit(1)
        os.close(theirs)
        os.close(mine)
        child = _Child(pid, self._feed.version, questions, answers)
        self._children[answers] = child
        self._selector.register(answers, selectors.EVENT_READ)
        return child

    def _warm_up(self) -> None:
        """Work out once what every child would have to, and give back what reading everything has left behind."""
        self._feed.fleet.settle()
        if not self._is_trimmed:
            self._is_trimmed = True
            CDLL(None).malloc_trim(0)

    def _be_a_child(self, questions: int, answers: int) -> NoReturn:
        gc.freeze()  # a collection that walked the fleet would copy it
        die_with_parent()
        for fd in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
            if fd not in {2, questions, answers}:
                with suppress(OSError):  # the folder's own is closed already
                    os.close(fd)
        os.nice(_NICER)
        _let_die_first()
        _limit_memory(self._memory_mib)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # nothing more can be opened: no file, no connection
        warm_up(self._feed.fleet)
        serve(self._feed.follow(), questions, answers)

    def _hear(self, child: _Child) -> None:
        data = os.read(child.answers, _AT_ONCE)
        if not data:
            self._lose(child)
            return
        try:
            for body in child.frames.feed(data):
                reply = _reply_to(child.row, body)
                child.unread, child.unread_before_ask = child.unread - child.unread_before_ask, 0
                child.until_s = time.monotonic() + (child.wall_s if child.row else _IDLE_S)
                self._say(reply)
                if isinstance(reply.answer, messages.NoAnswer):
                    self._put_back(child)
                    self._end(child)  # it ends itself; it must not be asked again
                    return
        except messages.NotAMessage as error:
            self._answer(child, messages.Failed(str(error)))
            self._end(child)

    def _end_the_late(self) -> None:
        now_s = time.monotonic()
        for child in [each for each in self._children.values() if each.until_s <= now_s]:
            self._answer(child, messages.Failed(f"no answer within {child.wall_s:g} s"))
            self._end(child)

    def _lose(self, child: _Child) -> None:
        """It has ended on its own, or was ended by the kernel."""
        status = self._end(child)
        how = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended"
        self._answer(child, messages.Failed(f"its process was {how}"))

    def _answer(self, child: _Child, answer: messages.Answer) -> None:
        """To what it was answering, if anything; it answers no more."""
        if child.row:
            self._say(messages.Reply(child.row.popleft(), answer, child.version, 0.0))
        self._put_back(child)

    def _put_back(self, child: _Child) -> None:
        """It answers no more: what it had not begun is to be asked elsewhere."""
        while child.row:
            self._say(messages.Reply(child.row.popleft(), messages.NotReached(), child.version, 0.0))

    def _end(self, child: _Child) -> int:
        self._selector.unregister(child.answers)
        del self._children[child.answers]
        os.close(child.questions)
        os.close(child.answers)
        os.kill(child.pid, signal.SIGKILL)
        return os.waitpid(child.pid, 0)[1]

    def _say(self, message: messages.Reply | messages.SkippedObject) -> None:
        messages.write(self._outbox, message)


def _reply_to(row: deque[int], body: bytes) -> messages.Reply:
    """To the first of the row, which it leaves: a child has nothing else to say. Raises NotAMessage."""
    reply = messages.outward(body)
    if not isinstance(reply, messages.Reply) or not row or reply.number != row[0]:
        raise messages.NotAMessage("it answers what it was not asked")
    row.popleft()
    return reply


def _let_die_first() -> None:
    with suppress(OSError):  # else the kernel chooses by size
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_KILL, encoding="ascii")


def _limit_memory(mib: int) -> None:
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    most = taken + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends."""
    parent = os.getppid()
    CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended just before


def main() -> None:
    """Be the fleet process: what stands on standard input is said to it, and it answers on standard output."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what ends the operator's process group ends this by its pipe
    compile_selector("true")  # reads the grammar: a child can open nothing
    outbox = os.dup(1)
    os.dup2(2, 1)  # whatever is printed by accident is no answer
    FleetProcess(0, outbox, int(sys.argv[1])).run()


if __name__ == "__main__":
    main()
