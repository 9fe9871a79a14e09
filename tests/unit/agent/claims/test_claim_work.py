"""Which thread does which work on claims, what it excludes meanwhile, and what is refused while NVML does not answer."""

from collections.abc import Callable, Collection, Iterable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from draco.agent.claims.plan import intent_of
from draco.agent.claims.preparer import ClaimPreparer
from draco.agent.claims.work import ClaimWork
from draco.agent.errors import PrepareError
from draco.agent.hardware.gpus import DriverInfo, Gpu
from draco.agent.hardware.monitor import HardwareView
from draco.agent.hardware.nvml import NvmlCall
from draco.agent.mig.claim_instances import ClaimInstances
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim
from draco.agent.state.node import NodeState
from draco.agent.threads import AgentThreads
from draco.mig.known_boards import BOARDS
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import NVIDIA_DRIVER, ClaimUid
from tests.builders import a_claim, a_gpu
from tests.doubles.clock import ManualClock

GPUS = [a_gpu(0, board=BOARDS["H100-80GB"]), a_gpu(1)]
PART = "node-0/gpu-0-mig-1g10gb-19-3"
WHOLE, DIVIDED = a_claim("whole", on=["node-0/gpu-0"]), a_claim("divided", on=[PART])


def uid_of(claim: ResourceClaim) -> ClaimUid:
    return ClaimUid(claim.metadata.uid)


def prepared(claim: ResourceClaim, state: PreparationState = PreparationState.PREPARED) -> PreparedClaim:
    gpus = {"gpu-0": GPUS[0], "gpu-1": GPUS[1]}
    return msgspec.structs.replace(intent_of(claim, driver=NVIDIA_DRIVER, pool="node-0", gpus=gpus), state=state)


class Node:
    """AgentThreads and a claim preparer that record their calls, and a record of claims."""

    def __init__(self) -> None:
        self.state = NodeState(ManualClock())
        self.view = HardwareView(driver=DriverInfo("1", "1", "1"), gpus=tuple(GPUS))
        self.record: dict[ClaimUid, PreparedClaim] = {}
        self.done: list[tuple[str, set[str]]] = []
        self.answers = True
        self.refusal: PrepareError | None = None
        self.hanging: NvmlCall | None = None
        self.kept_by: NvmlCall | None = None
        self.when_taken: Callable[[], object] = str
        self.seen: list[list[Gpu]] = []
        self.work = ClaimWork(
            cast("ClaimPreparer", SimpleNamespace(waits=lambda _: False, **{name: self._desk(name) for name in DESK})),
            cast("Checkpoint", SimpleNamespace(claims=self.record)),
            cast("ClaimInstances", None),
            cast("AgentThreads", self),
            self.state,
            driver=NVIDIA_DRIVER,
            clock=ManualClock(),
        )

    @property
    def view(self) -> HardwareView:
        return self.state.facts.view

    @view.setter
    def view(self, view: HardwareView) -> None:
        self.state.learn(view=view)

    def _desk(self, name: str) -> Callable[..., Any]:
        def note(claim: Any, gpus: Any = None) -> str:
            if gpus is not None:
                self.seen.append(list(gpus.values()))
            if self.refusal is not None:
                raise self.refusal
            return name

        return note

    async def take(self, names: Iterable[str]) -> NvmlCall | None:
        if self.kept_by is None:
            self.done.append(("take", set(names)))
            self.when_taken()
        return self.kept_by

    def give_back(self, names: Iterable[str]) -> None:
        self.done.append(("give back", set(names)))

    async def ask(self, work: Callable[[], Any]) -> bool:
        if self.answers:
            self.done.append((f"ask {work() or 'clear'}", set()))
        return self.answers

    async def on_record(self, work: Callable[[], Any], names: Collection[str] = ()) -> Any:
        self.done.append((f"on record {work()}", set(names)))

    async def with_driver(self, work: Callable[[], Any], names: Collection[str] = ()) -> Any:
        self.done.append((f"with driver {work()}", set(names)))


DESK = ("prepare", "clear", "prepare_unasked", "unprepare")


@pytest.fixture
def node() -> Node:
    return Node()


async def test_a_claim_of_partitions_is_prepared_with_the_driver_and_excludes_its_gpu(node: Node) -> None:
    await node.work.prepare(DIVIDED)
    assert node.done == [("with driver prepare", {uid_of(DIVIDED), GPUS[0].uuid})]


async def test_a_claim_that_has_partitions_needs_the_driver_whatever_it_is_allocated_now(node: Node) -> None:
    moved = a_claim("divided", on=["node-0/gpu-1"])
    node.record[uid_of(moved)] = prepared(DIVIDED)
    await node.work.prepare(moved)
    assert node.done == [("with driver prepare", {uid_of(moved), GPUS[0].uuid, GPUS[1].uuid})]


async def test_a_claim_of_whole_gpus_is_asked_about_and_then_prepared_without_the_driver(node: Node) -> None:
    names = {uid_of(WHOLE), GPUS[0].uuid}
    await node.work.prepare(WHOLE)
    assert node.done == [("take", names), ("ask clear", set()), ("on record prepare_unasked", names)]
    assert node.seen == [GPUS, GPUS]


async def test_devices_of_other_drivers_exclude_nothing(node: Node) -> None:
    await node.work.prepare(a_claim("one", on=["node-0/gpu-0", "nic.example.com/node-0/gpu-1"]))
    assert node.done[0][1] == {uid_of(a_claim("one")), GPUS[0].uuid}
    await node.work.prepare(a_claim("two", on=["node-0/gpu-0", f"nic.example.com/{PART}"]))
    assert node.done[-1][0] == "on record prepare_unasked", "what another driver calls so is no partition"


async def test_a_gpu_that_is_not_known_excludes_nothing_and_is_refused_by_whoever_prepares(node: Node) -> None:
    await node.work.prepare(a_claim("one", on=["node-0/gpu-7"]))
    assert node.done[0] == ("take", {uid_of(a_claim("one"))})


@pytest.mark.parametrize(("about", "refused"), [(GPUS[0].uuid, True), (GPUS[1].uuid, False), ("", True), (None, False)])
async def test_where_nvml_does_not_answer_a_new_claim_waits_only_for_calls_that_may_be_about_its_gpu(
    node: Node, about: str | None, refused: bool
) -> None:
    node.answers = False
    node.hanging = None if about is None else NvmlCall("nvmlDeviceGetName", about, 0.0)
    names = {uid_of(WHOLE), GPUS[0].uuid}
    if refused:
        with pytest.raises(PrepareError, match=r"^Claim default/whole cannot be prepared now: .*nvmlDeviceGetName"):
            await node.work.prepare(WHOLE)
        assert node.done == [("take", names), ("give back", names)]
    else:
        await node.work.prepare(WHOLE)
        assert node.done == [("take", names), ("on record prepare_unasked", names)]


@pytest.mark.parametrize("state", [None, PreparationState.PREPARED])
async def test_who_would_wait_for_work_that_a_call_holds_up_is_told_which(
    node: Node, state: PreparationState | None
) -> None:
    node.kept_by = NvmlCall("nvmlDeviceGetName", GPUS[0].uuid, 0.0)
    claim = "default/whole" if state else uid_of(WHOLE)
    if state:
        node.record[uid_of(WHOLE)] = prepared(WHOLE, state)
    why = rf"now: NVML's nvmlDeviceGetName for GPU {GPUS[0].uuid} does not answer\. Kubelet tries again\.$"
    with pytest.raises(PrepareError, match=rf"^Claim default/whole cannot be prepared {why}"):
        await node.work.prepare(WHOLE)
    with pytest.raises(PrepareError, match=rf"^Claim {claim} cannot be unprepared {why}"):
        await node.work.unprepare(uid_of(WHOLE))
    assert node.done == [], "nothing that others have is given back"


async def test_a_call_that_hangs_is_no_reason_once_nvml_has_been_asked(node: Node) -> None:
    node.hanging = NvmlCall("nvmlDeviceGetName", "", 0.0)
    await node.work.prepare(WHOLE)
    assert node.done[-1][0] == "on record prepare_unasked"


@pytest.mark.parametrize(("state", "refused"), [(PreparationState.PREPARED, False), (PreparationState.RELEASING, True)])
async def test_a_claim_that_is_prepared_is_answered_while_nvml_does_not(
    node: Node, state: PreparationState, refused: bool
) -> None:
    node.answers, node.hanging = False, NvmlCall("nvmlDeviceGetName", "", 0.0)
    node.record[uid_of(WHOLE)] = prepared(WHOLE, state)
    if refused:
        with pytest.raises(PrepareError):
            await node.work.prepare(WHOLE)
    else:
        await node.work.prepare(WHOLE)
    assert node.done[-1][0] == ("give back" if refused else "on record prepare_unasked")


async def test_what_is_refused_when_nvml_is_asked_keeps_no_name(node: Node) -> None:
    node.refusal = PrepareError("divided")
    names = {uid_of(WHOLE), GPUS[0].uuid}
    with pytest.raises(PrepareError, match="divided"):
        await node.work.prepare(WHOLE)
    assert node.done == [("take", names), ("give back", names)]


async def test_without_a_driver_nothing_is_prepared_and_the_view_says_why(node: Node) -> None:
    node.view = HardwareView(fault="The driver is not loaded.")
    for claim in (WHOLE, DIVIDED):
        with pytest.raises(PrepareError, match=r"cannot be prepared: The driver is not loaded\.$"):
            await node.work.prepare(claim)


async def test_partitions_are_neither_prepared_nor_given_up_while_a_call_hangs(node: Node) -> None:
    node.record[uid_of(DIVIDED)] = prepared(DIVIDED)
    hang = NvmlCall("nvmlDeviceGetName", "", 0.0)
    node.view = msgspec.structs.replace(node.view, fault="It hangs.", hang=hang)
    with pytest.raises(PrepareError, match=r"default/divided cannot be prepared now: It hangs\. Kubelet tries again"):
        await node.work.prepare(DIVIDED)
    with pytest.raises(PrepareError, match=r"default/divided cannot be unprepared now: It hangs\. Kubelet tries again"):
        await node.work.unprepare(uid_of(DIVIDED))
    assert node.done == []
    node.view = msgspec.structs.replace(node.view, hang=NvmlCall("", "", 0.0))
    await node.work.prepare(DIVIDED)
    await node.work.unprepare(uid_of(DIVIDED))
    assert [what for what, _ in node.done] == ["with driver prepare", "with driver unprepare"]


async def test_giving_up_partitions_needs_the_driver_and_giving_up_whole_gpus_does_not(node: Node) -> None:
    node.record.update({uid_of(claim): prepared(claim) for claim in (WHOLE, DIVIDED)})
    await node.work.unprepare(uid_of(DIVIDED))
    await node.work.unprepare(uid_of(WHOLE))
    await node.work.unprepare(ClaimUid("unknown"))
    assert node.done == [
        ("with driver unprepare", {uid_of(DIVIDED)}),
        ("take", {uid_of(WHOLE)}),
        ("on record unprepare", {uid_of(WHOLE)}),
        ("take", {"unknown"}),
        ("on record unprepare", {"unknown"}),
    ]


async def test_a_claim_that_was_prepared_with_partitions_while_giving_it_up_waited_is_given_up_with_them(
    node: Node,
) -> None:
    uid = uid_of(DIVIDED)
    node.when_taken = lambda: node.record.update({uid: prepared(DIVIDED)})
    await node.work.unprepare(uid)
    assert node.done == [("take", {uid}), ("give back", {uid}), ("with driver unprepare", {uid})]


async def test_a_claim_is_told_once_if_its_release_begins_and_fails(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status must not stay Ready while kubelet tries again."""
    uid, told = uid_of(DIVIDED), list[PreparedClaim]()
    known = node.record[uid] = prepared(DIVIDED)

    def release(_: ClaimUid) -> None:
        node.record[uid] = msgspec.structs.replace(known, state=PreparationState.RELEASING)
        raise PrepareError("in use")

    monkeypatch.setattr(node.work._preparer, "unprepare", release)
    monkeypatch.setattr(node.state, "claim_changed", told.append)
    for _ in range(2):
        with pytest.raises(PrepareError):
            await node.work.unprepare(uid)
    assert told == [known]


async def test_a_claim_that_is_released_after_its_caller_gave_up_is_told_then(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML answers only after kubelet's deadline, and kubelet's next call finds no such claim."""
    uid, told, hanging = uid_of(DIVIDED), list[PreparedClaim](), list[Callable[[], Any]]()
    known = node.record[uid] = prepared(DIVIDED)

    async def hang(work: Callable[[], Any], _names: Collection[str] = ()) -> Any:
        hanging.append(work)
        raise TimeoutError

    monkeypatch.setattr(node, "with_driver", hang)
    monkeypatch.setattr(node.work._preparer, "unprepare", node.record.pop)
    monkeypatch.setattr(node.state, "claim_changed", told.append)
    with pytest.raises(TimeoutError):
        await node.work.unprepare(uid)
    assert told == []
    hanging[0]()
    assert told == [known]
