"""Workers as processes: hostile selectors, deaths at every point, no leftovers, and nothing to steal."""

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.controller.view import ClusterView
from draco.controller.workers.fair_queue import QueuePriority
from draco.controller.workers.messages import (
    AskQuestions,
    CheckClaim,
    ClaimProblems,
    ExplainPending,
    FindRelease,
    OutOfMemory,
    OverBudget,
    PendingAnswer,
    Question,
    ReleaseAnswer,
    Reply,
)
from draco.controller.workers.places import Answered
from draco.controller.workers.pool import Workers, WorkerSettings
from draco.controller.workers.process import FleetProcessHandle, ProcessEnded
from draco.explanation.explain import explain
from draco.kube.clock import SystemClock
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.watch.informer import Informer
from draco.resources.api.claims import CelSelector, DeviceSelector, ResourceClaim
from draco.resources.api.slices import DeviceAttribute, ResourceSlice
from tests.builders import a_claim, a_device_class, a_node, a_pod, a_slice
from tests.doubles.workers import fleet_of

NODES = 20
PATIENT = {"short_cpu_s": 1.0, "short_wall_s": 60.0, "long_wall_s": 120.0}
"""Long enough for workers to answer on a busy machine."""
NUMBERS = f"[{', '.join(map(str, range(90)))}]"
COSTLY = f'{NUMBERS}.all(x, {NUMBERS}.exists(y, x == y)) && device.attributes["gpu.nvidia.com"].uuid != '
"""Takes thousands of steps on each device, and is not cached: each device has another UUID."""


class Lab:
    """Twenty nodes with two devices each, and workers that know them."""

    def __init__(self, memory_mib: int = 384, **settings: float) -> None:
        self.memory_mib = memory_mib
        self.clock = SystemClock()
        self.view = ClusterView(Client(Connection("http://127.0.0.1:1")), None, clock=self.clock)
        self.processes: list[FleetProcessHandle] = []
        self.workers = Workers(
            self.view.followed,
            clock=self.clock,
            settings=WorkerSettings(**{**PATIENT, **settings}),  # type: ignore[arg-type]
            start=self._start,
        )
        self.put(self.view.classes, a_device_class())
        for number in range(NODES):
            self.put(self.view.nodes, a_node(f"node-{number}"))
            self.put(self.view.slices, with_uuids(a_slice(f"node-{number}")))

    async def _start(self) -> FleetProcessHandle:
        self.processes.append(await FleetProcessHandle.start(self.memory_mib))
        return self.processes[-1]

    def put(self, informer: Informer, obj: object) -> None:  # type: ignore[type-arg]
        informer._publish(informer.store.put(obj))

    async def ask(self, claim: ResourceClaim, *, namespace: str = "default") -> Answered:
        question = ExplainPending(a_pod(namespace=namespace), [claim], "", 36)
        return await self.asked(question, namespace, QueuePriority.FIRST)

    async def asked(self, question: Question, namespace: str, urgency: QueuePriority) -> Answered:
        answered = await self.workers.ask(lambda: question, namespace, urgency)
        assert answered is not None
        return answered

    def children(self) -> list[int]:
        """The worker processes, ended ones included."""
        return children_of(self.processes[-1].pid)


@asynccontextmanager
async def a_lab(*, memory_mib: int = 384, **settings: float) -> AsyncIterator[Lab]:
    made = Lab(memory_mib, **settings)
    task = asyncio.create_task(made.workers.run())
    try:
        yield made
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not any(is_alive(each.pid) for each in made.processes)


def selecting(name: str, *expressions: str) -> ResourceClaim:
    """A claim with one request with these selectors."""
    claim = a_claim(name)
    (request,) = claim.spec.devices.requests
    assert request.exactly is not None
    selectors = [DeviceSelector(cel=CelSelector(expression=each)) for each in expressions]
    exactly = msgspec.structs.replace(request.exactly, selectors=selectors)
    devices = msgspec.structs.replace(claim.spec.devices, requests=[msgspec.structs.replace(request, exactly=exactly)])
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def with_uuids(published: ResourceSlice) -> ResourceSlice:
    """The slice with a unique attribute per device."""
    devices = [
        msgspec.structs.replace(
            device,
            attributes={
                **device.attributes,
                "uuid": DeviceAttribute(string=f"{published.metadata.name}/{device.name}"),
            },
        )
        for device in published.spec.devices
    ]
    return msgspec.structs.replace(published, spec=msgspec.structs.replace(published.spec, devices=devices))


def hostile(name: str) -> ResourceClaim:
    """A claim with sixteen selectors, all costly but the first."""
    return selecting(name, "true", *[f"{COSTLY}'{name}-{number}'" for number in range(15)])


def of_process(pid: int, file: str) -> str:
    return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace")


def opened_by(pid: int) -> list[str]:
    return [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]


def children_of(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


async def ask_on(handle: FleetProcessHandle) -> None:
    """Ask until the process is reported as ended."""
    while True:
        await handle.send(AskQuestions([(1, ExplainPending(a_pod(), [], "", 36))], 0, 1.0, 1.0, is_last=False))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until(look: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("noticed", [False, True])
async def test_a_process_that_died_is_told_of_as_ended_and_leaves_no_traceback(
    *, noticed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await FleetProcessHandle.start()
    os.kill(handle.pid, signal.SIGKILL)
    if noticed:
        async for _ in handle.replies():
            pass
    with pytest.raises(ProcessEnded):
        await ask_on(handle)
    await handle.end()
    del handle
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


async def test_what_a_worker_says_is_what_the_explanation_says() -> None:
    async with a_lab() as lab:
        claim = selecting("waiting", "device.attributes['gpu.nvidia.com'].none == 'x'")
        said = await lab.ask(claim)
        expected = explain(fleet_of(lab.view), [claim], pod=a_pod(), minor=36)
        assert said.answer == PendingAnswer(str(expected), str(expected.reason), names_subject=True)
        wrong = await lab.asked(CheckClaim(claim), "default", QueuePriority.REVIEW)
        assert wrong.answer == ClaimProblems(expected.problems)
        movable = FindRelease(a_pod(claims=["waiting"]), [claim], [(claim.metadata.key, 1)])
        found = await lab.asked(movable, "default", QueuePriority.SEARCH)
        assert isinstance(found.answer, ReleaseAnswer)
        assert found.answer.release is None


def wanting(name: str, count: int) -> ResourceClaim:
    """A claim for this many devices of one node."""
    claim = a_claim(name)
    [request] = claim.spec.devices.requests
    assert request.exactly is not None
    more = msgspec.structs.replace(request, exactly=msgspec.structs.replace(request.exactly, count=count))
    devices = msgspec.structs.replace(claim.spec.devices, requests=[more])
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


async def test_a_change_is_seen_by_the_next_question() -> None:
    async with a_lab() as lab:
        texts = []
        for number in range(3):
            said = (await lab.ask(wanting("waiting", 3))).answer
            assert isinstance(said, PendingAnswer)
            texts.append(said.text)
            lab.put(lab.view.slices, a_slice(f"new-{number}"))
        assert [f"({devices} devices: " in text for devices, text in zip((40, 42, 44), texts, strict=True)] == [
            True
        ] * 3


async def test_after_a_few_changes_the_same_process_answers_and_after_many_another() -> None:
    async with a_lab() as lab:
        await lab.ask(wanting("waiting", 3))
        (first,) = lab.children()
        lab.put(lab.view.slices, a_slice("new"))
        said = (await lab.ask(wanting("waiting", 3))).answer
        assert isinstance(said, PendingAnswer)
        assert "(42 devices: " in said.text
        assert lab.children() == [first]
        for number in range(100):
            lab.put(lab.view.slices, a_slice(f"more-{number}", [f"gpu-{index}" for index in range(8)]))
        said = (await lab.ask(wanting("waiting", 9))).answer
        assert isinstance(said, PendingAnswer)
        assert "842 devices" in said.text
        assert first not in lab.children()


@pytest.mark.usefixtures("no_collection")
async def test_a_process_that_answers_is_told_of_changes_meanwhile_and_answers_the_next_question_too() -> None:
    async with a_lab(places=1) as lab:
        await lab.ask(a_claim("plain"))
        (first,) = lab.children()
        os.kill(first, signal.SIGSTOP)  # so its next question takes arbitrarily long
        asking = asyncio.create_task(lab.ask(a_claim("plain")))
        await asyncio.sleep(0)  # let it be asked
        await until(lambda: lab.workers.waiting == 0)
        lab.put(lab.view.claims, a_claim("holder", on=["node-0/gpu-0"]))
        later = asyncio.create_task(lab.ask(selecting("none", "device.driver == 'none'")))
        await until(lambda: not lab.view.followed.is_dirty)
        os.kill(first, signal.SIGCONT)
        before, after = await asking, await later
        assert before.version < after.version
        assert lab.children() == [first]


async def answers_to(handle: FleetProcessHandle, asked: AskQuestions) -> dict[int, str]:
    """The kind of answer to each question in the row."""
    await handle.send(asked)
    found: dict[int, str] = {}
    async for replies in handle.replies():
        found |= {each.number: type(each.answer).__name__ for each in replies if isinstance(each, Reply)}
        if len(found) == len(asked.questions):
            break
    return found


async def test_of_a_row_what_stands_behind_a_question_that_exceeds_its_budget_is_not_answered() -> None:
    view = ClusterView(Client(Connection("http://127.0.0.1:1")), None, clock=SystemClock())
    for number in range(NODES):
        informer = view.slices
        informer._publish(informer.store.put(with_uuids(a_slice(f"node-{number}"))))
    view.classes._publish(view.classes.store.put(a_device_class()))
    plain, bad = (ExplainPending(a_pod(), [claim], "", 36) for claim in (a_claim("plain"), hostile("bad")))

    def row(*questions: ExplainPending, cpu_s: float) -> AskQuestions:
        return AskQuestions(list(enumerate(questions)), view.followed.version, cpu_s, 60.0, is_last=False)

    handle = await FleetProcessHandle.start()
    try:
        while view.followed.is_dirty:
            await handle.send(view.followed.next_changes(64))
        assert await answers_to(handle, row(plain, plain, plain, cpu_s=10.0)) == dict.fromkeys(
            range(3), "PendingAnswer"
        )
        assert await answers_to(handle, row(plain, bad, plain, cpu_s=0.3)) == {
            0: "PendingAnswer",
            1: "OverBudget",
            2: "NotReached",
        }
    finally:
        await handle.end()


async def test_hostile_selectors_are_named_and_cost_nothing_again_while_others_are_answered() -> None:
    async with a_lab(short_cpu_s=0.3, long_cpu_s=0.6) as lab:
        await lab.ask(a_claim("warm"))
        bad = [asyncio.create_task(lab.ask(hostile(f"bad-{number}"), namespace="bad")) for number in range(6)]
        await asyncio.sleep(0)
        longest_s = 0.0
        honest = asyncio.create_task(lab.ask(a_claim("honest"), namespace="good"))
        while not honest.done():
            before_s = time.thread_time()
            await asyncio.sleep(0.005)
            longest_s = max(longest_s, time.thread_time() - before_s)
        assert isinstance(honest.result().answer, PendingAnswer)
        assert not all(each.done() for each in bad), "nobody waits until all of another namespace are answered"
        refused = await asyncio.gather(*bad)
        for each in refused:
            assert isinstance(each.answer, OverBudget)
            assert each.answer.selector is not None
            assert each.answer.selector.number >= 1
            assert each.answer.selector.steps > 2_000
            assert each.answer.devices == 2 * NODES
        assert longest_s < 0.25, "nothing of this is on the event loop: one of them takes all of its budget"
        before_s = lab.workers.counts.cpu_s
        again = msgspec.structs.replace(hostile("bad-0"), metadata=a_claim("from-the-same-template").metadata)
        assert (await lab.ask(again, namespace="bad")).answer == refused[0].answer
        assert lab.workers.counts.cpu_s == before_s


async def test_a_question_that_takes_too_much_memory_ends_alone() -> None:
    async with a_lab(memory_mib=16, short_cpu_s=2.0) as lab:
        huge = selecting("huge", "lists.range(900000).map(x, x + 1000).size() == 3")
        assert (await lab.ask(huge)).answer == OutOfMemory()
        assert isinstance((await lab.ask(a_claim("other"))).answer, PendingAnswer)
        assert (await lab.ask(huge)).cpu_s == 0.0, "it is remembered"


async def test_a_worker_that_is_killed_is_replaced_and_its_question_answered() -> None:
    async with a_lab(short_cpu_s=5.0) as lab:
        await lab.ask(a_claim("warm"))
        asked = asyncio.create_task(lab.ask(hostile("slow")))
        await until(lambda: lab.workers.waiting == 0 and any(cpu_s(pid) > 0.1 for pid in lab.children()))
        busy = max(lab.children(), key=cpu_s)
        with capture_logs() as logs:
            os.kill(busy, signal.SIGKILL)
            other = await lab.ask(a_claim("other"), namespace="other")
            await until(lambda: logs)
        assert isinstance(other.answer, PendingAnswer)
        assert [(said["event"], said["error"]) for said in logs] == [
            ("workers.question_failed", "its process was killed by signal 9")
        ]
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


async def test_the_process_that_holds_the_fleet_is_replaced_and_its_children_end_with_it() -> None:
    async with a_lab() as lab:
        before = await lab.ask(a_claim("one"))
        (first,) = lab.processes
        children = lab.children()
        assert children
        with capture_logs():
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: not any(map(is_alive, children)))
            after = await lab.ask(a_claim("two"))
        assert len(lab.processes) == 2
        assert isinstance(before.answer, PendingAnswer)
        assert isinstance(after.answer, PendingAnswer)


async def test_workers_have_no_credentials_and_can_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    async with a_lab() as lab:
        await lab.ask(a_claim("one"))
        holder = lab.processes[0].pid
        (child,) = lab.children()
        for pid in (holder, child):
            environment = of_process(pid, "environ")
            assert "PATH=" in environment
            assert not any(word in environment for word in ("KUBERNETES", "SECRET"))
        assert all(each.startswith("pipe:") or "/dev/" in each or "/tmp" in each for each in opened_by(child))
        (files,) = [line.split() for line in of_process(child, "limits").splitlines() if "open files" in line]
        assert files[3:5] == ["0", "0"]


async def test_workers_end_with_an_operator_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "an_operator.py"
    program.write_text(
        "import asyncio\n"
        "from draco.controller.workers.process import FleetProcessHandle\n"
        "async def main():\n"
        "    process = await FleetProcessHandle.start()\n"
        "    print(process.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    worker = int(await process.stdout.readline())
    assert is_alive(worker)
    process.kill()
    await process.wait()
    await until(lambda: not is_alive(worker))


def cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
