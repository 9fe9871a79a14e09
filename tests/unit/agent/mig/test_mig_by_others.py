"""Changes by hand on GPUs that the agent divides, on simulated NVML: kept, reported, and never taken for the agent's own."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest

from draco.agent.errors import PrepareError
from draco.agent.hardware.gpus import Instance, Use
from draco.agent.hardware.nvml_errors import NvmlError
from draco.agent.mig import claim_instances
from draco.agent.mig.inventory import DOUBT_S
from draco.mig.board import Placement
from draco.mig.claim_plan import plan_whole
from draco.mig.gpu_plan import GpuPlan
from draco.mig.observed import ObservedGpu
from draco.resources.api.draco import MigMode, WantedGpu, WantedInstance
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.gpu_state import GpuProcess
from tests.builders import a_claim
from tests.doubles.files import FullCopyOnWriteDisk
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

ONE = a_mig_claim("one", *names([(9, 4)]))
TWO = a_mig_claim("two", *names([(9, 0), (19, 4)]))
WHOLE = a_claim("whole", on=["node-0/gpu-0"])


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    build(tmp_path)
    return MigNode(tmp_path)


@pytest.mark.parametrize("compute", [True, False])
def test_an_instance_of_somebody_else_is_reported_refused_and_never_touched(node: MigNode, compute: bool) -> None:
    by_hand.create_instance(node.path, 0, "3g.40gb", start=4, compute="whole" if compute else "none")
    faults.fail(node.path, "nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_UNKNOWN)  # must not be called
    with pytest.raises(
        PrepareError, match=r"cannot get gpu-0-mig-3g40gb-9-4: GPU instance .* destroy it with nvidia-smi"
    ):
        node.prepare(ONE)
    faults.stop_failing(node.path)
    node.prepare(a_mig_claim("left", *names([(9, 0)])))
    assert node.uses() == [(9, 0, Use.CLAIM), (9, 4, Use.FOREIGN)]
    node.unprepare(a_mig_claim("left", *names([(9, 0)])))
    assert node.real() == [(9, 4, int(compute))]
    assert MigNode(node.folder).uses() == [(9, 4, Use.FOREIGN)]


def test_an_instance_of_somebody_else_in_the_whole_gpu_is_left_alone_too(node: MigNode) -> None:
    by_hand.create_instance(node.path, 0, "3g.40gb", start=4)
    with pytest.raises(PrepareError, match=r"cannot get the whole of gpu-0: .* was made by somebody else"):
        node.prepare(WHOLE)
    assert node.real() == [(9, 4, 1)]
    assert not node.record.claims


def test_while_a_gpu_is_made_whole_nobody_looks_at_it_between_two_steps(
    node: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a step might name an instance that somebody destroys at that moment, if NVML's event makes the agent look."""
    by_hand.create_instance(node.path, 0, "3g.40gb", start=4)
    looked: list[bool] = []

    def look() -> bool:
        if free := node.nvml.lock.acquire(blocking=False):
            by_hand.destroy_instance(node.path, 0, node.hardware().instances[0].id)
            node.scan()
            node.nvml.lock.release()
        return free

    def meanwhile(gpu: ObservedGpu) -> GpuPlan:
        planned = plan_whole(gpu)
        looked.append(other.submit(look).result())
        return planned

    monkeypatch.setattr(claim_instances, "plan_whole", meanwhile)
    with (
        ThreadPoolExecutor(1) as other,
        pytest.raises(PrepareError, match=r"cannot get the whole of gpu-0: .* was made by somebody else"),
    ):
        node.desk.clear(WHOLE, node.named)
    assert looked == [False]


def test_what_somebody_makes_where_an_instance_was_planned_and_never_tried_is_not_taken_for_ours(
    node: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = node.edge.create

    def beaten(*asked: Any) -> Instance:
        by_hand.create_instance(node.path, 0, "1g.10gb", start=4, compute="none")
        faults.fail(node.path, "nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_UNKNOWN, times=1)
        return create(*asked)

    monkeypatch.setattr(node.edge, "create", beaten)
    with pytest.raises(PrepareError):
        node.prepare(TWO)
    assert (node.real(), node.uses()) == ([(19, 4, 0)], [(19, 4, Use.FOREIGN)])


def test_what_somebody_makes_in_a_place_never_tried_is_not_undone_though_a_full_disk_keeps_the_step_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    files = FullCopyOnWriteDisk()
    node = MigNode(tmp_path, files=files)
    create = node.edge.create

    def beaten(*asked: Any) -> Instance:
        by_hand.create_instance(node.path, 0, "1g.10gb", start=4, compute="none")
        faults.fail(node.path, "nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_UNKNOWN, times=1)
        files.refused = {"/state/"}
        return create(*asked)

    monkeypatch.setattr(node.edge, "create", beaten)
    with pytest.raises(PrepareError, match="No space left on device"):
        node.prepare(TWO)
    assert len(node.record.instances) == 2, "both steps are still on record"
    files.refused = set()
    node.layouts.keep(node.uuid)
    assert (dict(node.record.instances), node.uses()) == ({}, [(19, 4, Use.FOREIGN)])
    assert not node.mig.divisions[node.uuid].dirty


def test_a_step_that_was_never_taken_is_off_the_record_at_once(node: MigNode) -> None:
    """A restarted agent could not distinguish an instance made there by hand from its own."""
    board = node.gpus[0].board
    assert board
    large, small = board.by_id(9), board.by_id(19)
    assert large
    assert small
    faults.fail(node.path, "nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(NvmlError):
        node.steps.make(node.uuid, [Placement(small, 4), Placement(large, 0)])
    assert [(key.profile_id, key.start) for key in node.record.instances] == [(9, 0)]


@pytest.mark.parametrize("taken", ["compute instance", "place"])
def test_what_somebody_takes_as_soon_as_it_is_made_is_given_to_nobody(
    node: MigNode, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    create = node.edge.create

    def robbed(*asked: Any) -> Instance:
        made = create(*asked)
        if made.start == 0:
            return made
        if taken == "place":
            by_hand.destroy_instance(node.path, 0, made.gi)
            by_hand.create_instance(node.path, 0, "1g.10gb", start=4)
        else:
            handle = node.nvml.call("nvmlDeviceGetGpuInstanceById", node.nvml.handle(node.uuid), made.gi)
            compute = node.nvml.call("nvmlGpuInstanceGetComputeInstanceById", handle, made.ci)
            node.nvml.call("nvmlComputeInstanceDestroy", compute)
        return made

    monkeypatch.setattr(node.edge, "create", robbed)
    with pytest.raises(PrepareError, match=r"NVML made 1g\.10gb at 4 but does not list it"):
        node.prepare(TWO)
    assert (node.real(), node.specs()) == ([(19, 4, 1)] if taken == "place" else [], {})


def test_what_somebody_puts_in_the_place_of_ours_while_holders_are_looked_for_is_not_touched(tmp_path: Path) -> None:
    path = build(tmp_path)

    def replaced(*_: Any) -> str:
        [ours] = [one for one in state.load(path).gpus[0].instances if one.start == 0]
        by_hand.destroy_instance(path, 0, ours.id)
        by_hand.create_instance(path, 0, "3g.40gb", start=0)
        return "process 4711 (train)"

    node = MigNode(tmp_path, find=replaced)
    node.prepare(TWO)
    [small] = [one for one in node.hardware().instances if one.start == 4]
    faults.hold(path, 0, GpuProcess(pid=4711, gpu_instance=small.id, listed=False))
    with pytest.raises(PrepareError, match=r"in use by process 4711 \(train\)"):
        node.unprepare(TWO)
    assert node.uses() == [(9, 0, Use.FOREIGN), (19, 4, Use.ORPHAN)]


def test_what_one_claim_has_lost_is_told_though_another_got_its_own_again(node: MigNode) -> None:
    node.prepare(TWO)
    for one in node.hardware().instances:
        by_hand.destroy_instance(node.path, 0, one.id)
    by_hand.create_instance(node.path, 0, "3g.40gb", start=0)
    assert "The instance 3g.40gb at 0, which a claim needs, is gone and cannot be made again" in node.layouts.keep(
        node.uuid
    )
    assert node.uses() == [(9, 0, Use.FOREIGN), (19, 4, Use.CLAIM)]


def test_who_stands_in_the_place_of_a_lost_instance_has_not_its_claim(node: MigNode) -> None:
    node.prepare(ONE)
    by_hand.destroy_instance(node.path, 0, node.hardware().instances[0].id)
    by_hand.create_instance(node.path, 0, "3g.40gb", start=4)
    node.scan()
    division = node.mig.divisions[node.uuid]
    assert [(one.use, one.claims) for one in division.held] == [(Use.FOREIGN, ())]
    assert [key.start for key in division.missing] == [4]


def test_what_a_claim_needs_on_one_gpu_is_not_missed_on_another(tmp_path: Path) -> None:
    build(tmp_path, gpus=2)
    node = MigNode(tmp_path)
    node.prepare(a_mig_claim("other", *names([(9, 4)], gpu=1)))
    by_hand.destroy_instance(node.path, 1, node.hardware(1).instances[0].id)
    node.scan()
    missing = [[key.start for key in node.mig.divisions[gpu.uuid].missing] for gpu in node.gpus]
    assert missing == [[], [4]]


def test_an_instance_without_its_compute_instance_is_no_claim_s_any_more(node: MigNode) -> None:
    node.prepare(ONE)
    [there] = node.hardware().instances
    handle = node.nvml.call("nvmlDeviceGetGpuInstanceById", node.nvml.handle(node.uuid), there.id)
    node.nvml.call("nvmlComputeInstanceDestroy", node.nvml.call("nvmlGpuInstanceGetComputeInstanceById", handle, 0))
    node.scan()
    assert node.uses() == [(9, 4, Use.ORPHAN)]
    assert [key.start for key in node.mig.divisions[node.uuid].missing] == [4]


def test_a_gpu_that_could_not_be_listed_once_is_clean_again_when_it_can_be(node: MigNode) -> None:
    faults.fail(node.path, "nvmlDeviceGetGpuInstances", pynvml.NVML_ERROR_UNKNOWN)
    node.scan()
    assert node.mig.divisions[node.uuid].dirty
    faults.stop_failing(node.path)
    node.scan()
    assert not node.mig.divisions[node.uuid].dirty


def test_an_answer_that_passes_does_not_end_whose_an_instance_is(node: MigNode) -> None:
    node.prepare(ONE)
    record, real, spec = dict(node.record.instances), node.real(), node.specs()
    gpus = node.nvml.gpus()
    faults.fail(node.path, "nvmlDeviceGetUUID", pynvml.NVML_ERROR_NOT_FOUND)
    for _ in range(3):
        node.mig.look(gpus)
        with suppress(NvmlError):
            node.steps.settle(node.uuid)
    assert node.uses() == [(9, 4, Use.CLAIM)]
    faults.stop_failing(node.path)
    node.scan()
    assert (dict(node.record.instances), node.real(), node.specs()) == (record, real, spec)
    assert not node.mig.divisions[node.uuid].missing
    node.unprepare(ONE)
    assert node.real() == []


def test_of_a_gpu_that_left_the_node_nothing_is_said_when_it_comes_back(node: MigNode) -> None:
    by_hand.create_instance(node.path, 0, "3g.40gb", start=4)
    layout = [WantedInstance(profile="3g.40gb", start=4)]
    wanted = WantedGpu(uuid=node.uuid, policy="pool", mode=MigMode.STATIC, layout=layout)
    assert node.layouts.apply(node.uuid, wanted) == node.mig.divisions[node.uuid].message != ""
    there = node.scan()
    node.mig.look([])
    node.mig.look(there)
    assert node.mig.divisions[node.uuid].message == ""


# MIG mode changed by hand


def test_a_gpu_divided_by_hand_since_the_last_look_is_not_given_whole(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path)
    by_hand.set_mode(node.path, 0, 1)
    by_hand.create_instance(node.path, 0, "3g.40gb", start=4)
    with pytest.raises(PrepareError, match=r"cannot get the whole of gpu-0: .* was made by somebody else"):
        node.prepare(WHOLE)
    assert (node.real(), dict(node.record.claims)) == ([(9, 4, 1)], {})
    by_hand.destroy_instance(node.path, 0, node.hardware().instances[0].id)
    node.prepare(WHOLE)
    assert node.hardware().mig_current == 0, "an empty GPU leaves MIG mode for the claim"


def test_a_gpu_whose_mode_was_changed_by_hand_and_changes_back_with_a_reset_only_is_not_given_whole(
    tmp_path: Path,
) -> None:
    path = build(tmp_path, board="A100-80GB", mig=False)
    node = MigNode(tmp_path)
    by_hand.set_mode(path, 0, 1)
    faults.reset(path, 0)
    name = f"gpu-{node.gpus[0].minor}"
    with pytest.raises(
        PrepareError, match=f"was allocated all of {name}, which is in MIG mode, and turning it off needs a reset"
    ):
        node.prepare(a_claim("whole", on=[f"node-0/{name}"]))
    assert not node.record.claims


def test_a_claim_that_is_prepared_again_does_not_get_a_gpu_divided_since(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path)
    first = node.prepare(WHOLE)
    by_hand.set_mode(node.path, 0, 1)
    by_hand.create_instance(node.path, 0, "3g.40gb", start=4)
    with pytest.raises(PrepareError, match=r"cannot get the whole of gpu-0: .* was made by somebody else"):
        node.prepare(WHOLE)
    by_hand.destroy_instance(node.path, 0, node.hardware().instances[0].id)
    assert node.prepare(WHOLE) == first
    assert node.hardware().mig_current == 0


def test_a_gpu_whose_mode_cannot_be_asked_is_not_given_whole(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path)
    faults.fail(node.path, "nvmlDeviceGetMigMode", pynvml.NVML_ERROR_UNKNOWN, times=1)
    with pytest.raises(
        PrepareError, match=r"cannot get the whole of gpu-0: .*nvmlDeviceGetMigMode .* Kubelet tries again"
    ):
        node.prepare(WHOLE)
    assert (dict(node.record.claims), node.specs()) == ({}, {})
    node.prepare(WHOLE)


def test_a_gpu_whose_mode_was_turned_off_by_hand_since_the_last_look_is_divided_all_the_same(node: MigNode) -> None:
    by_hand.set_mode(node.path, 0, 0)
    node.prepare(ONE)
    assert node.real() == [(9, 4, 1)]


def test_a_gpu_that_has_no_mig_is_given_whole_though_it_cannot_be_read_now(tmp_path: Path) -> None:
    build(tmp_path, board="L40S", mig=False)
    node = MigNode(tmp_path)
    faults.make_unreadable(node.path, 0)
    node.prepare(WHOLE)
    assert len(node.specs()) == 1


# Unclear ownership


def cut_off(node: MigNode, monkeypatch: pytest.MonkeyPatch, *, by_somebody: bool) -> MigNode:
    """A restart of an agent that was killed after recording a step: NVML created the instance, or somebody else did."""

    class Killed(BaseException):
        pass

    def killed(*_asked: Any) -> None:
        raise Killed

    if by_somebody:
        monkeypatch.setattr(node.edge, "create", killed)
    else:
        change = node.record.change
        monkeypatch.setattr(
            node.record,
            "change",
            lambda **what: killed() if any(one.gi for one in what.get("own", ())) else change(**what),
        )
    with pytest.raises(Killed):
        node.prepare(ONE)
    if by_somebody:
        by_hand.create_instance(node.path, 0, "3g.40gb", start=4, compute="none")
    return MigNode(node.folder)


DOUBT = (
    r"GPU instance 2 \(3g.40gb at 4\), without a compute instance, may come from an interrupted step of this agent, or "
    r"from somebody else; the agent removes it unless somebody uses it within 30 s\."
)


@pytest.mark.parametrize("by_somebody", [True, False])
def test_what_may_be_somebody_else_s_is_left_alone_told_and_given_to_nobody(
    node: MigNode, monkeypatch: pytest.MonkeyPatch, by_somebody: bool
) -> None:
    again = cut_off(node, monkeypatch, by_somebody=by_somebody)
    again.now_s = DOUBT_S - 1
    again.layouts.keep(again.uuid)
    assert (again.real(), again.uses()) == ([(9, 4, 0)], [(9, 4, Use.ORPHAN)])
    division = again.mig.divisions[again.uuid]
    assert division.dirty
    assert re.fullmatch(DOUBT, division.message)
    for claim in (ONE, a_mig_claim("small", *names([(19, 5)])), WHOLE):
        with pytest.raises(PrepareError, match=DOUBT):
            again.prepare(claim)
    assert again.real() == [(9, 4, 0)]
    again.prepare(a_mig_claim("left", *names([(9, 0)])))
    again.now_s = DOUBT_S
    again.prepare(ONE)
    assert (again.real(), again.mig.divisions[again.uuid].dirty) == ([(9, 0, 1), (9, 4, 1)], False)


def test_what_may_be_somebody_else_s_and_is_in_use_stays_and_its_user_is_named(
    node: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(node, monkeypatch, by_somebody=True)
    faults.hold(node.path, 0, GpuProcess(pid=4711, gpu_instance=node.hardware().instances[0].id, listed=False))
    again = MigNode(node.folder, holder="process 4711 (nvidia-smi)")
    again.now_s = DOUBT_S
    again.layouts.keep(again.uuid)
    assert again.real() == [(9, 4, 0)]
    assert "in use by process 4711 (nvidia-smi)" in again.mig.divisions[again.uuid].message


def test_a_layout_waits_for_what_may_be_somebody_else_s(node: MigNode, monkeypatch: pytest.MonkeyPatch) -> None:
    again = cut_off(node, monkeypatch, by_somebody=True)
    wanted = WantedGpu(
        uuid=again.uuid, policy="pool", mode=MigMode.STATIC, layout=[WantedInstance(profile="3g.40gb", start=4)]
    )
    note = again.layouts.apply(again.uuid, wanted)
    assert "3g.40gb at 4 waits for GPU instance 2 that somebody else may have made" in note
    again.now_s = DOUBT_S
    assert again.layouts.apply(again.uuid, wanted) == ""
    assert again.uses() == [(9, 4, Use.LAYOUT)]


def test_a_refused_step_that_a_full_disk_keeps_on_record_undoes_nothing_of_anybody_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    files = FullCopyOnWriteDisk()
    node = MigNode(tmp_path, files=files)
    create = node.edge.create

    def beaten(*asked: Any) -> Instance:
        by_hand.create_instance(node.path, 0, "3g.40gb", start=4, compute="none")
        files.refused = {"/state/"}
        return create(*asked)

    monkeypatch.setattr(node.edge, "create", beaten)
    with pytest.raises(PrepareError, match="No space left on device"):
        node.prepare(ONE)
    assert node.record.instances, "the step is still on record"
    files.refused = set()
    node.layouts.keep(node.uuid)
    assert (node.real(), dict(node.record.instances)) == ([(9, 4, 0)], {})
    assert node.uses() == [(9, 4, Use.FOREIGN)]
