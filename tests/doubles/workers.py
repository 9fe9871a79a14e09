"""Workers that answer immediately, in this process."""

from collections.abc import Callable

from draco.allocation.fleet.fleet import Fleet
from draco.controller.view import ClusterView
from draco.controller.workers.answering import FleetFeed, answer
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.controller.workers.messages import Answer, Question, SkippedObject
from draco.controller.workers.places import Answered, ReadQuestion
from draco.controller.workers.pool import Workers
from tests.doubles.placing import a_placer


def told_fleet(followed: FollowedFleet, left_out: Callable[[SkippedObject], None] | None = None) -> FleetFeed:
    """The fleet of a process that has received all changes."""
    feed = FleetFeed(left_out or followed.left_out)
    hand_on(followed, feed)
    return feed


def hand_on(followed: FollowedFleet, feed: FleetFeed) -> None:
    """Send the changes that it has not received yet."""
    while followed.is_dirty:
        feed.take(followed.next_changes(7))


def fleet_of(view: ClusterView) -> Fleet:
    """A fleet of what the view knows."""
    return Fleet.of(
        slices=view.slices.store.values(),
        rules=view.rules.store.values(),
        nodes=view.nodes.store.values(),
        classes=view.classes.store.values(),
        claims=view.claims.store.values(),
    )


class UnaskedWorkers(Workers):
    """Workers that a test does not ask, except through what it overrides."""

    long_cpu_s = 2.0

    def __init__(self) -> None:
        """Without a fleet process to ask."""

    def may_ask(self, namespace: str) -> bool:
        raise NotImplementedError

    async def ask(self, read: ReadQuestion, namespace: str, urgency: QueuePriority) -> Answered | None:
        raise NotImplementedError

    async def ask_within(
        self, question: Question, namespace: str, urgency: QueuePriority, within_s: float
    ) -> Answered | None:
        raise NotImplementedError


class PromptWorkers(UnaskedWorkers):
    """Answers questions about the view. Each answer costs `cpu_s`; `instead` may return another answer."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.cpu_s = 0.0
        self.asked: list[Question] = []
        self.instead: Callable[[Question], Answer | None] = lambda _: None
        self.is_late = False
        """Whether questions with a time limit miss it."""

    async def ask(self, read: ReadQuestion, namespace: str, urgency: QueuePriority) -> Answered | None:
        question = read()
        return self._answered(question) if question is not None else None

    def _answered(self, question: Question) -> Answered:
        self.asked.append(question)
        found = self.instead(question) or answer(a_placer(fleet_of(self._view)), question)
        return Answered(found, self._view.followed.version, self.cpu_s)

    async def ask_within(
        self, question: Question, namespace: str, urgency: QueuePriority, within_s: float
    ) -> Answered | None:
        return None if self.is_late else self._answered(question)
