"""The agent machine's upgrade layer: a next agent stands by, and the serving agent is told to end.

Owns these steps, and kubelet's calls meanwhile: kubelet calls the plugin that registered last. A call that fails during the
handover must fail afterwards, too, unless one of the agents dies, kubelet registers the next one too late, or another plugin
serves the driver.
"""

import asyncio
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import precondition

from draco.agent.errors import AnotherPlugin
from draco.agent.plugin.handover import stands_by
from tests.adversary.agent.driven import Driven
from tests.adversary.agent.node import NUMBERS, accident, fired
from tests.adversary.agent.processes import POLL_S, SELDOM_S, looking_often
from tests.adversary.agent.scheduler import Claim
from tests.adversary.agent.shares import ClaimsOfShares
from tests.adversary.agent.surroundings import Death

PATIENCE_S = 60.0
"""Longer than a handover takes."""
IN_TIME_S = 2.0
"""If kubelet registers the next agent within this time, the old one still waits for it."""


Ask = tuple[int, int, bool]
"""A call of kubelet: at which of four moments, for which claim, and whether it unprepares it."""


class Course(NamedTuple):
    """How an upgrade goes.

    Kubelet takes `late_s` to register the next agent. It makes the calls `asks` at four moments: before the old agent is told to
    end, right after, when the next one has registered, and when the old one has ended. The API server takes `slow_s` to answer.
    The agent named in `dies` dies at its step number `at`. With `both`, both agents are told to end. Without `hands_over` the old
    agent waits for no successor, like a version that knows of none. Without `followed` no new agent is started.
    """

    late_s: float
    asks: list[Ask]
    slow_s: float
    dies: str
    at: int
    both: bool
    hands_over: bool
    followed: bool


class Asked:
    """A call of kubelet that is under way during a handover."""

    def __init__(self, agent: Driven, claim: Claim, *, gives_up: bool) -> None:
        self.agent, self.claim, self.gives_up = agent, claim, gives_up
        self.answer = agent.ask(claim.name, claim.uid, gives_up=gives_up)

    @property
    def failed(self) -> str | None:
        """Why it failed; None while it is under way, "" if it succeeded."""
        if not self.answer.done():
            return None
        if self.answer.cancelled() or self.answer.exception() is not None:
            return "the connection was lost"
        return str(self.answer.result().claims[self.claim.uid].error)


class HandingOver(ClaimsOfShares):
    """Steps that upgrade an agent."""

    @precondition(lambda self: self.agent is not None and self.next is None)
    @accident()
    def follow(self) -> None:
        """The next agent is started beside the one that serves."""
        self._follow()

    def _follow(self) -> None:
        fired["follow"] += 1
        self.next = Driven(
            self.folder,
            loop=self.loop,
            clock=self.clock,
            source=self.source,
            disk=self.disk,
            death=Death(),
            follows=True,
        )
        try:
            self.next.begin()
        except AnotherPlugin:  # no agent holds the node, and another plugin serves
            assert any(rival.contends for rival in self.rivals.live), (
                "the next agent does not start, though nobody contends"
            )
            fired["follow: refused beside another"] += 1
            self.next.stop()
            self.next = None
            return
        if self.next.process.holds:  # no agent held the node, so this one took it
            self.agent, self.next = self.next, self.agent
            self._promoted()
        fired["follow: stands by"] += stands_by(self.folder / "agent")

    @precondition(lambda self: self.agent is not None and not self.hanging)
    @accident(
        late_s=st.sampled_from((0.0, 0.0, 1.0, 8.0)),
        asks=st.lists(st.tuples(st.integers(0, 3), NUMBERS, st.booleans()), max_size=4),
        slow_s=st.sampled_from((0.0, 1.0, 3.0)),
        dies=st.sampled_from(("", "", "", "the old", "the next")),
        at=st.integers(1, 60),
        both=st.sampled_from((False, False, False, False, True)),
        hands_over=st.sampled_from((True, True, True, False)),
        followed=st.sampled_from((True, True, True, False)),
    )
    def told_to_end(self, **drawn: Any) -> None:
        """Tell the agent to end. Its successor, if there is one, serves from then on."""
        course = Course(**drawn)
        if course.followed and self.next is None:
            self._follow()
        with looking_often():
            if self.next is not None:
                self.turn(SELDOM_S)
            if self.agent is not None:
                self._told_to_end(course)

    def _told_to_end(self, course: Course) -> None:
        fired["told to end"] += 1
        old, following = self._up(), self.next
        old.process.hands_over = course.hands_over
        if course.dies and following is not None:
            (old if course.dies == "the old" else following).death.arm(course.at)
        others = bool(self.rivals.live)
        calls: list[Asked] = []
        if self._served():
            self.source.slow_s, self.source.clock = course.slow_s, self.clock
            calls += self._asked_at(0, old, course.asks)
            old.end()
            calls += self._asked_at(1, old, course.asks)
            if course.both and following is not None:
                following.end()
            calls += self._until_followed(old, following, course.late_s, course.asks)
            self.source.slow_s = 0.0
        else:
            old.end()
            self._until_followed(old, following, course.late_s, [])
        died = old.death.dead or (following is not None and following.death.dead)
        self._bury()
        agent = self.agent
        if agent is not None and not agent.death.dead:
            with self._living("followed"):
                agent.finish([call.answer for call in calls])
                if not agent.ready:
                    agent.turn(PATIENCE_S)
        for call in calls:
            assert call.failed is not None, f"{call.claim.name}: kubelet gets no answer"
            self._hear(call)
        disturbed = died or course.both or others or course.late_s > IN_TIME_S or not course.hands_over
        if not disturbed and following is not None:
            self._check_calls(calls)

    def _until_followed(self, old: Driven, following: Driven | None, late_s: float, asks: list[Ask]) -> list[Asked]:
        """Let time pass until the old agent has ended. Kubelet registers the next one when it asks."""
        calls: list[Asked] = []
        waited_s, seen_s = 0.0, None
        called = old
        while not old.ended:
            assert waited_s < PATIENCE_S, "an agent that was told to end does not"
            old.pass_time(POLL_S)
            waited_s += POLL_S
            if following is None or following.ended or called is following:
                continue
            if following.registers and seen_s is None:
                seen_s = waited_s
            if seen_s is not None and waited_s >= seen_s + late_s:
                following.kubelet_registers()
                called = following
                calls += self._asked_at(2, following, asks)
        if following is not None and not following.ended:
            calls += self._asked_at(3, following, asks)
        return calls

    def _asked_at(self, moment: int, agent: Driven, asks: list[Ask]) -> list[Asked]:
        found = []
        for _, pick, gives_up in (ask for ask in asks if ask[0] == moment and self.claims):
            claim = self._pick(pick)
            if claim.name in self.busy or claim.leaving or (gives_up and not claim.told):
                continue
            self.busy.add(claim.name)
            fired["asked while told to end"] += 1
            if gives_up:
                claim.leaving = True
                self._forget_alive(claim)
            else:
                claim.unsure = claim.unsure or not claim.told
            self._kubelet_records()
            found.append(Asked(agent, claim, gives_up=gives_up))
        return found

    def _hear(self, call: Asked) -> None:
        """Record the answer that kubelet got."""
        self.busy.discard(call.claim.name)
        fired[f"asked while told to end: {call.failed or 'done'}"[:90]] += 1
        if call.failed:
            return
        if call.gives_up:
            self._delete(call.claim)
            return
        call.claim.told, call.claim.unsure = True, False
        if call.agent is self.agent and self._served() and not self._up().death.dead:
            self._check_answer(call.claim)
        else:
            self._take_up(call.claim)

    def _check_calls(self, calls: list[Asked]) -> None:
        """Check that failed calls fail again, now that the handover is over."""
        for call in calls:
            if call.failed and self._served() and call.claim.name in self.claims:
                if call.gives_up:
                    error = self._give_up(call.claim)
                else:
                    error, _ = self._up().prepare(call.claim.name, call.claim.uid)
                    call.claim.told = call.claim.told or not error
                    if not error:
                        self._check_answer(call.claim)
                assert error, f"{call.claim.name} failed only because agents followed each other: {call.failed}"

    def _reap(self) -> None:
        """Remove a standby agent that has died or ended."""
        following = self.next
        if following is None or not (following.death.dead or following.ended):
            return
        reason: Any = following.why_ended
        assert reason is None or isinstance(reason, AnotherPlugin | asyncio.CancelledError) or following.death.dead, (
            reason
        )
        following.stop()
        self.next = None
        fired["one that stood by is gone"] += 1
