"""The process that holds the fleet and forks children that answer questions about it.

Owns the fleet, the children and their deadlines. It applies changes, at a cost in proportion to what they touch, and never
evaluates what users write. It has one thread and opens nothing, so it can fork at any moment; memory is shared until written. Few
changes are also sent to children, even busy ones, which apply them afterwards: a fork takes longer than most answers.

Started by `process` as `python -m draco.controller.workers.fleet_process MIB`, with pipes for input and output and the memory
that a child may use beyond what it shares.
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
"""An idle child ends after this, since the memory it has written to is its own."""
_FOLLOWED_BYTES: Final = 32 << 10
"""Maximum of unread changes per child: half of what a pipe buffers without blocking."""
_PR_SET_PDEATHSIG: Final = 1
_NICER: Final = 5
"""Answers yield to the operator's own work, including lease and probes."""
_FIRST_TO_KILL: Final = "1000"
"""If memory runs out, the kernel kills a child rather than the operator."""


class _Child:
    """A forked process with the fleet as of `version`."""

    def __init__(self, pid: int, version: int, questions: int, answers: int) -> None:
        self.pid = pid
        self.version = version
        self.questions = questions
        self.answers = answers
        self.unread = 0
        """Bytes of changes sent that it may not have read."""
        self.unread_before_ask = 0
        """How many of them it will have read once it answers."""
        self.frames = messages.FrameReader(messages.MOST_ANSWER_BYTES)
        self.row: deque[int] = deque()
        """Numbers of the questions it has still to answer, in order, ..."""
        self.wall_s = _IDLE_S
        """... and the time limit of each."""
        self.until_s = time.monotonic() + _IDLE_S
        """When its answer is late, or it has been idle for too long."""


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
                self._take(self._bodies.popleft())  # nothing more is read before this is done: it waits in the pipe
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
        """Send the changes to children that have everything before them."""
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
        """Give the questions to a child whose fleet is recent enough."""
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
        """Compute once what every child would have to, and release memory left from reading everything."""
        self._feed.fleet.settle()
        if not self._is_trimmed:
            self._is_trimmed = True
            CDLL(None).malloc_trim(0)

    def _be_a_child(self, questions: int, answers: int) -> NoReturn:
        gc.freeze()  # a collection that traverses the fleet would copy it
        die_with_parent()
        for fd in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
            if fd not in {2, questions, answers}:
                with suppress(OSError):  # the folder's own descriptor is already closed
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
                    self._end(child)  # it ends itself, and must not be asked again
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
        status = self._end(child)
        how = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended"
        self._answer(child, messages.Failed(f"its process was {how}"))

    def _answer(self, child: _Child, answer: messages.Answer) -> None:
        """Answer the child's current question, if any; the child answers no more."""
        if child.row:
            self._say(messages.Reply(child.row.popleft(), answer, child.version, 0.0))
        self._put_back(child)

    def _put_back(self, child: _Child) -> None:
        """Return the questions that an ended child had not started."""
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
    """The reply to the first question of the row, which is removed: a child sends nothing else. Raises NotAMessage."""
    reply = messages.outward(body)
    if not isinstance(reply, messages.Reply) or not row or reply.number != row[0]:
        raise messages.NotAMessage("it answers what it was not asked")
    row.popleft()
    return reply


def _let_die_first() -> None:
    with suppress(OSError):  # otherwise the kernel chooses by size
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_KILL, encoding="ascii")


def _limit_memory(mib: int) -> None:
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    most = taken + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    parent = os.getppid()
    CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended just before


def main() -> None:
    """Run the fleet process: messages arrive on standard input, replies go to standard output."""
    die_with_parent()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # an interrupt ends the operator, and its closed pipe ends this process
    compile_selector("true")  # reads the grammar: a child can open nothing
    outbox = os.dup(1)
    os.dup2(2, 1)  # accidental prints must not become answers
    FleetProcess(0, outbox, int(sys.argv[1])).run()


if __name__ == "__main__":
    main()
