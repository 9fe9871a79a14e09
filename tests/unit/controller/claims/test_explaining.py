"""How often explanations are made: soon after a change, never too often, and once for all pods that ask the same."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.allocation.ownership.gangs import gang_of
from draco.controller.claims.explaining import Explanations, PodWithClaims
from draco.controller.claims.pod_questions import scheduler_says
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.fleet_feed import FollowedFleet
from draco.controller.workers.messages import Answer, CostlySelector, ExplainPending, Failed, OverBudget, PendingAnswer
from draco.controller.workers.places import Answered, ReadQuestion
from draco.resources.api.core import Pod
from draco.resources.api.meta import Condition, ObjectKey
from tests.builders import a_claim, a_pod
from tests.doubles.clock import ManualClock
from tests.doubles.workers import UnaskedWorkers

MINOR = 36


class Lab(UnaskedWorkers):
    """Explanations of pods; each takes `takes_s`, and contains the number of changes of the cluster so far."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.followed = FollowedFleet()
        self.explanations = Explanations(self.followed, self, clock=self.clock, minor=MINOR)
        self.takes_s = 0.0
        self.slow: dict[str, float] = {}
        """How long questions about some pods take."""
        self.left = 0
        """How many questions were abandoned before their answer came."""
        self.pods: dict[ObjectKey, PodWithClaims] = {}
        self.made: Counter[str] = Counter()
        self.urgencies: list[QueuePriority] = []
        self.changed: list[str] = []
        self.backlog = 0
        self.text: Callable[[Pod], str] = lambda _: f"changed {self.followed.version} times"
        self.names_subject = self.names_group = False
        """Whether the texts name the pod, or its group, and so are true only of those."""
        self.answer: Callable[[Pod], Answer] = lambda pod: PendingAnswer(
            self.text(pod), "InUse", names_subject=self.names_subject, names_group=self.names_group
        )

    async def ask(self, read: ReadQuestion, namespace: str, urgency: QueuePriority) -> Answered | None:
        if (question := read()) is None:
            return None
        assert isinstance(question, ExplainPending)
        assert (question.minor, question.pod.metadata.namespace) == (MINOR, namespace)
        version = self.followed.version
        self.urgencies.append(urgency)
        self.made[question.pod.metadata.name] += 1
        answer = self.answer(question.pod)
        if takes_s := self.slow.get(question.pod.metadata.name, self.takes_s):
            try:
                await self.clock.sleep(takes_s)
            except asyncio.CancelledError:
                self.left += 1
                raise
        return Answered(answer, version, self.takes_s)

    def add(self, *names: str, alike: bool = False, namespace: str = "default") -> None:
        for name in names:
            pod = a_pod(name, claims=[f"claim-of-{name}"], namespace=namespace)
            device_class = "any" if alike else f"class-of-{name}"
            self.pods[pod.metadata.key] = (pod, [a_claim(f"claim-of-{name}", device_class=device_class)])

    def known(self) -> dict[str, str]:
        """The current explanation of each pod; requests those that are missing."""
        told = {key.name: self.explanations.of(*waiting) for key, waiting in self.pods.items()}
        return {name: each.text for name, each in told.items() if each is not None}

    async def explained(self) -> None:
        """Have everything explained for the first time."""
        for _ in range(3):  # an explanation that names its subject is requested twice
            self.known()
            await self.clock.advance(1.0)
        assert self.known().keys() == {key.name for key in self.pods}
        await self.clock.advance(2.0)  # so that old explanations may be renewed immediately
        self.made.clear()
        self.changed.clear()

    def change(self) -> None:
        self.followed.version += 1
        self.followed.listeners.tell()

    @asynccontextmanager
    async def kept_young(self) -> AsyncIterator[None]:
        task = asyncio.create_task(
            self.explanations.keep_fresh(
                self.pods.get, lambda pod: self.changed.append(pod.metadata.name), lambda: self.backlog
            )
        )
        await self.clock.advance(0)
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_nobody_waits_for_an_answer_but_is_woken_by_it() -> None:
    lab = Lab()
    lab.add("slow", "other")
    lab.takes_s = 30.0
    async with lab.kept_young():
        assert lab.known() == {}
        await lab.clock.advance(29.0)
        assert (lab.known(), lab.changed) == ({}, [])
        await lab.clock.advance(2.0)
        assert sorted(lab.changed) == ["other", "slow"]
        assert lab.known() == {"slow": "changed 0 times", "other": "changed 0 times"}
        assert lab.made == {"slow": 1, "other": 1}
        assert set(lab.urgencies) == {QueuePriority.FIRST}


async def test_a_burst_of_changes_is_one_change_and_is_told_within_a_second() -> None:
    lab = Lab()
    lab.add("pod")
    async with lab.kept_young():
        await lab.explained()
        for _ in range(100):
            lab.change()
            await lab.clock.advance(0.0005)
        await lab.clock.advance(0.9)
        assert lab.made == {"pod": 1}
        assert lab.changed == ["pod"]
        assert lab.known() == {"pod": "changed 100 times"}
        assert lab.urgencies[-1] is QueuePriority.AGAIN


@pytest.mark.parametrize("names", [("slow",), ("slow", "another")])
async def test_what_changes_while_a_first_question_is_answered_is_told_though_nothing_changes_any_more(
    names: tuple[str, ...],
) -> None:
    """The other pods have been explained again by then, so nothing else triggers it."""
    lab = Lab()
    lab.add("fast")
    async with lab.kept_young():
        await lab.explained()
        lab.takes_s = 3.0
        lab.add(*names)
        lab.known()
        await lab.clock.advance(0.1)
        lab.takes_s = 0.0
        lab.change()
        await lab.clock.advance(2.0)
        assert lab.known() == {"fast": "changed 1 times"}
        await lab.clock.advance(3.0)
        assert lab.known() == dict.fromkeys({"fast", *names}, "changed 1 times")


async def test_nobody_is_woken_when_the_same_is_to_be_said() -> None:
    lab = Lab()
    lab.text = lambda _: "as ever"
    lab.add("pod")
    async with lab.kept_young():
        await lab.explained()
        lab.change()
        await lab.clock.advance(1)
        assert (lab.made, lab.changed) == ({"pod": 1}, [])


async def test_changes_without_end_cost_one_pod_two_explanations_a_second() -> None:
    lab = Lab()
    lab.add("pod")
    async with lab.kept_young():
        await lab.explained()
        for _ in range(100):
            lab.change()
            await lab.clock.advance(0.1)
        assert 18 <= lab.made["pod"] <= 21


async def test_of_each_namespace_the_longest_unexplained_comes_first_and_a_row_at_a_time() -> None:
    lab = Lab()
    many = [f"pod-{number:02}" for number in range(50)]
    lab.add(*many)
    lab.add("alone", namespace="quiet")
    async with lab.kept_young():
        await lab.explained()
        lab.takes_s = 1.0
        for _ in range(40):
            lab.change()
            await lab.clock.advance(1.0)
        assert lab.made["alone"] >= 25, "it waits for no other namespace"
        others = [lab.made[name] for name in many]
        assert max(others) - min(others) <= 1
        assert 40 * 10 <= sum(others) <= 40 * 16, "one at a time would be 40"


async def test_a_question_that_waits_long_keeps_no_other_of_its_namespace_old() -> None:
    lab = Lab()
    lab.add("slow", *(f"pod-{number:02}" for number in range(30)))
    async with lab.kept_young():
        await lab.explained()
        lab.slow = {"slow": 3600.0}
        lab.change()
        await lab.clock.advance(2.0)
        young = [name for name, text in lab.known().items() if text == "changed 1 times"]
        assert len(young) == 30
        lab.change()
        lab.slow = {}
        await lab.clock.advance(3600.0)
        assert set(lab.known().values()) == {"changed 2 times"}, "the slow one too is explained anew"


async def test_pods_that_ask_the_same_share_one_explanation() -> None:
    lab = Lab()
    lab.add(*(f"pod-{number}" for number in range(100)), alike=True)
    async with lab.kept_young():
        lab.known()
        await lab.clock.advance(1)
        assert sum(lab.made.values()) == 1
        assert len(lab.known()) == 100
        lab.changed.clear()
        lab.change()
        await lab.clock.advance(1)
        assert sum(lab.made.values()) == 2
        assert len(lab.changed) == 100


async def test_a_pod_whose_name_is_a_word_of_the_explanation_shares_it() -> None:
    lab = Lab()
    lab.text = lambda _: "Request gpu wants 2 devices on one node, and no node has more than 1 free."
    lab.add("gpu", "wants", "node", alike=True)
    async with lab.kept_young():
        lab.known()
        await lab.clock.advance(1)
        assert len(lab.known()) == 3
        assert sum(lab.made.values()) == 1


async def test_an_explanation_that_names_its_pod_is_not_given_to_another() -> None:
    lab = Lab()
    lab.text = lambda pod: f"{pod.metadata.name} cannot be placed, {lab.followed.version}"
    lab.names_subject = True
    lab.add("one", "two", alike=True)
    async with lab.kept_young():
        await lab.explained()
        assert lab.known() == {"one": "one cannot be placed, 0", "two": "two cannot be placed, 0"}
        lab.change()
        await lab.clock.advance(1)
        assert lab.made == {"one": 1, "two": 1}
        assert lab.known() == {"one": "one cannot be placed, 1", "two": "two cannot be placed, 1"}


async def test_all_pods_of_a_question_are_woken_when_its_answer_names_one_of_them() -> None:
    """A pod that is not woken would never ask, and its Event would never come."""
    lab = Lab()
    lab.text = lambda pod: f"{pod.metadata.name} cannot be placed"
    lab.names_subject = True
    lab.add("one", "two", "three", alike=True)
    said: dict[str, str] = {}

    def reconcile(name: str) -> None:
        key = ObjectKey("default", name)
        if (explanation := lab.explanations.of(*lab.pods[key])) is not None:
            said[name] = explanation.text

    async with lab.kept_young():
        for key in lab.pods:
            reconcile(key.name)
        while len(said) < 3:
            assert lab.clock.monotonic() < 60
            await lab.clock.advance(1)
            woken, lab.changed = lab.changed, []
            for name in woken:
                reconcile(name)
    assert said == {name: f"{name} cannot be placed" for name in ("one", "two", "three")}


@pytest.mark.parametrize("is_named", [True, False])
async def test_pods_of_several_groups_share_an_explanation_unless_it_names_one(is_named: bool) -> None:
    lab = Lab()
    lab.text = lambda pod: (
        f"Draco allocates {gang_of(pod) if is_named else 'groups'} all at once, {lab.followed.version}"
    )
    lab.names_group = is_named
    groups = {"one": "first", "two": "first", "three": "second", "four": "second", "alone": ""}
    lab.add(*groups, alike=True)
    for key, (pod, claims) in lab.pods.items():
        labels = {"kueue.x-k8s.io/pod-group-name": groups[key.name]}
        meta = msgspec.structs.replace(pod.metadata, labels=labels)
        lab.pods[key] = msgspec.structs.replace(pod, metadata=meta), claims
    async with lab.kept_young():
        await lab.explained()
        for version in (0, 1):
            assert lab.known() == {
                key.name: f"Draco allocates {gang_of(pod) if is_named else 'groups'} all at once, {version}"
                for key, (pod, _) in lab.pods.items()
            }
            lab.change()
            await lab.clock.advance(1)
        assert sum(lab.made.values()) == 2 * (3 if is_named else 2)


async def test_what_waits_to_be_written_is_written_before_more_is_explained() -> None:
    lab = Lab()
    lab.add("pod")
    async with lab.kept_young():
        await lab.explained()
        lab.backlog = 100
        lab.change()
        await lab.clock.advance(5)
        assert not lab.made
        lab.backlog = 0
        await lab.clock.advance(1)
        assert lab.made == {"pod": 1}


async def test_a_pod_that_waits_no_more_is_forgotten() -> None:
    lab = Lab()
    lab.add("pod")
    async with lab.kept_young():
        await lab.explained()
        lab.pods.clear()
        lab.change()
        await lab.clock.advance(1)
        lab.change()
        await lab.clock.advance(1)
        assert not lab.made
        assert kept(lab) == NOTHING


def kept(lab: Lab) -> tuple[object, ...]:
    made = lab.explanations
    return made._topics, made._topic_of, made._answered, made._divided, made._new, made._asked


NOTHING: tuple[object, ...] = ({}, {}, {}, {}, {}, Counter[str]())


async def test_of_a_pod_that_is_forgotten_nothing_is_left_whether_or_not_it_was_explained() -> None:
    lab = Lab()
    lab.text = lambda pod: f"{pod.metadata.name} cannot be placed"
    lab.names_subject = True
    lab.add("one", "two", alike=True)
    lab.add("other")
    async with lab.kept_young():
        await lab.explained()
        lab.takes_s = 30.0
        lab.add("waiting")
        lab.known()
        await lab.clock.advance(1)
        for key in lab.pods:
            lab.explanations.forget(key)
        await lab.clock.advance(0)
        assert kept(lab) == NOTHING
        assert lab.left == 1, "its question has been left"


async def test_a_question_that_others_ask_too_is_kept_for_them() -> None:
    lab = Lab()
    lab.add("one", "two", alike=True)
    async with lab.kept_young():
        await lab.explained()
        lab.explanations.forget(ObjectKey("default", "one"))
        lab.pods.pop(ObjectKey("default", "one"))
        lab.change()
        await lab.clock.advance(1)
        assert (lab.made, lab.known()) == ({"two": 1}, {"two": "changed 1 times"})


async def test_an_answer_about_a_pod_that_has_gone_is_not_given_to_another_that_asks_the_same() -> None:
    lab = Lab()
    lab.text = lambda pod: f"{pod.metadata.name} cannot be placed"
    lab.names_subject = True
    lab.add("one", "two", alike=True)
    lab.takes_s = 5.0
    async with lab.kept_young():
        lab.known()
        await lab.clock.advance(1)
        assert lab.made == {"one": 1}
        lab.explanations.forget(ObjectKey("default", "one"))
        lab.pods.pop(ObjectKey("default", "one"))
        await lab.clock.advance(5)
        assert (lab.made, lab.known()) == ({"one": 1, "two": 1}, {})
        await lab.clock.advance(5)
        assert lab.known() == {"two": "two cannot be placed"}


async def test_of_a_namespace_so_many_first_questions_are_asked_at_a_time_and_all_in_the_end() -> None:
    lab = Lab()
    lab.add(*(f"pod-{number}" for number in range(200)))
    lab.add("alone", namespace="quiet")
    lab.takes_s = 1.0
    async with lab.kept_young():
        lab.known()
        await lab.clock.advance(0.5)
        assert (sum(lab.made.values()), lab.made["alone"]) == (65, 1)
        for _ in range(4):
            await lab.clock.advance(1.0)
        assert len(lab.known()) == 201


async def test_a_pod_that_comes_back_is_explained_again() -> None:
    lab = Lab()
    lab.add("pod")
    async with lab.kept_young():
        await lab.explained()
        pods, lab.pods = lab.pods, {}
        lab.change()
        await lab.clock.advance(1)
        lab.pods = pods
        lab.explanations.of(*next(iter(pods.values())))
        await lab.clock.advance(1)
        assert lab.known() == {"pod": "changed 1 times"}
        lab.pods = pods


async def test_a_fault_in_one_explanation_stops_neither_the_others_nor_the_operator() -> None:
    lab = Lab()
    lab.add("bad", "good")

    def text(pod: Pod) -> str:
        if pod.metadata.name == "bad":
            raise ZeroDivisionError
        return "changed"

    async with lab.kept_young():
        await lab.explained()
        lab.text = text
        with capture_logs() as logs:
            lab.change()
            await lab.clock.advance(1.5)
        assert lab.made["good"] == 1
        assert sorted(lab.changed) == ["bad", "good"], "its reconciliation asks anew"
    assert {(said["event"], said["pod"]) for said in logs} == {("explaining.failed", "default/bad")}


@pytest.mark.parametrize(
    ("answer", "text", "reason"),
    [
        (
            OverBudget(CostlySelector(0, "gpu", "", 2, 1_000_000), 800),
            (
                "Too costly to explain: selector #2 of request gpu of claim default/claim-of-pod takes 1,000,000 steps, the most "
                "that Kubernetes allows, on each of 800 devices; simplify it."
            ),
            "TooCostly",
        ),
        (
            OverBudget(CostlySelector(0, "", "huge", 0, 43_210), 800),
            "Too costly to explain: selector #0 of class huge takes about 43,000 steps on each of 800 devices; simplify it.",
            "TooCostly",
        ),
        (
            OverBudget(None, 800),
            "Too costly to explain: checking it needs more than 2 s of CPU time on 800 devices; split the claim.",
            "TooCostly",
        ),
        (Failed("no"), "Cannot be explained: the check failed (no); Draco tries again later.", "Unknown"),
    ],
)
async def test_who_waits_is_told_why_there_is_no_explanation(answer: Answer, text: str, reason: str) -> None:
    lab = Lab()
    lab.add("pod")
    lab.answer = lambda _: answer
    async with lab.kept_young():
        await lab.explained()
        ((pod, claims),) = lab.pods.values()
        names_subject = "claim-of-pod" in text
        assert lab.explanations.of(pod, claims) == PendingAnswer(text, reason, names_subject=names_subject)


async def test_a_pod_of_which_something_else_is_known_is_explained_at_once() -> None:
    lab = Lab()
    lab.add("pod")
    async with lab.kept_young():
        await lab.explained()
        ((pod, _),) = lab.pods.values()
        lab.pods[pod.metadata.key] = (pod, [a_claim("claim-of-pod", device_class="other")])
        assert lab.known() == {}
        await lab.clock.advance(0)
        assert lab.made["pod"] == 1
        assert lab.known() == {"pod": "changed 0 times"}


def test_the_scheduler_speaks_in_one_condition_of_a_pod_and_in_no_other() -> None:
    said = [
        Condition(type="Ready", status="False", message="containers are not ready"),
        Condition(type="PodScheduled", status="False", message="0/1 nodes are available"),
    ]
    pod = a_pod("train")
    assert scheduler_says(pod) == ""
    waiting = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=said))
    assert scheduler_says(waiting) == "0/1 nodes are available"
