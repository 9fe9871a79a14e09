"""A plan made from the agent's report predicts what the agent does, on simulated NVML, in long random runs."""

from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import pynvml
import pytest

from draco.agent.errors import PrepareError
from draco.agent.hardware.gpus import Use
from draco.agent.publish.partitions import partition_name
from draco.agent.report import mig_report
from draco.mig.board import Board, Placement
from draco.mig.geometry import geometry
from draco.mig.gpu_plan import GpuPlan, plan_gpu
from draco.mig.keeping import keeping
from draco.mig_policy.boards import observed
from draco.mig_policy.promises import promises
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import (
    GpuNode,
    GpuNodeStatus,
    GpuStatus,
    MigMode,
    ProfileCount,
    PromisedDevice,
    WantedGpu,
    WantedInstance,
)
from draco.resources.names import read_partition_name
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus.state import StateError
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build

CHANGES = 8


def a_layout(random: Random, board: Board, most: int = 5) -> list[Placement]:
    """Instances that fit together."""
    space, state, chosen = geometry(board), geometry(board).empty, []
    for _ in range(random.randint(1, most)):
        if fitting := space.fits(state):
            chosen.append(random.choice(fitting))
            state = space.add(state, chosen[-1])
    return chosen


class Claims:
    """Allocations as a scheduler makes them: no two claims on the same memory slices or engines."""

    def __init__(self, random: Random, board: Board) -> None:
        self._random = random
        self._board = board
        self._promised: dict[str, ResourceClaim] = {}
        self._prepared: dict[str, ResourceClaim] = {}

    @property
    def holders(self) -> dict[str, list[str]]:
        """The claims on each device."""
        claims = [*self._promised.values(), *self._prepared.values()]
        return {device.device: [str(claim.metadata.key)] for claim in claims for device in claim.devices_held}

    def come(self) -> None:
        """A claim is allocated; its pod may start later, or never."""
        space = geometry(self._board)
        taken = space.state_of(self._placement(device) for device in self.holders)
        fitting = space.fits(taken)
        if fitting:
            name = f"claim-{self._random.random()}"
            self._promised[name] = a_mig_claim(name, partition_name("gpu-0", self._random.choice(fitting)))

    def _placement(self, device: str) -> Placement:
        name = read_partition_name(device)
        profile = self._board.by_id(name.profile_id) if name else None
        assert name is not None
        assert profile is not None
        return Placement(profile, name.start)

    def start(self, node: MigNode) -> None:
        """The pod of a claim starts; instances made by hand may block it."""
        if self._promised:
            name = self._random.choice(sorted(self._promised))
            try:
                node.prepare(self._promised[name])
            except PrepareError:
                return
            self._prepared[name] = self._promised.pop(name)

    def go(self, node: MigNode) -> None:
        """A claim is deleted."""
        if self._prepared:
            node.unprepare(self._prepared.pop(self._random.choice(sorted(self._prepared))))
        elif self._promised:
            del self._promised[self._random.choice(sorted(self._promised))]


def something_wanted(random: Random, board: Board, uuid: str) -> WantedGpu | None:
    mode = random.choice([MigMode.STATIC, MigMode.STATIC, MigMode.STATIC, MigMode.DYNAMIC, MigMode.DISABLED, None])
    allowed = random.sample(board.profiles, 3)
    if mode is None:
        return None
    layout = a_layout(random, board) if mode is MigMode.STATIC else []
    warm = random.sample(board.profiles, 2) if mode is MigMode.DYNAMIC else []
    return WantedGpu(
        uuid=uuid,
        policy="policy",
        mode=mode,
        profiles=[each.name for each in allowed] if mode is MigMode.DYNAMIC and random.random() < 0.5 else [],
        layout=[WantedInstance(profile=each.profile.name, start=each.start) for each in layout],
        warm=[ProfileCount(profile=each.name, count=random.randint(1, 2)) for each in warm],
    )


def status_of(node: MigNode) -> GpuStatus:
    """The status of the GPU as the agent reports it."""
    gpu = node.scan()[0]
    reported = mig_report.mig(gpu, node.mig.divisions, mig_report.boards([gpu]))
    return GpuStatus(device="gpu-0", uuid=gpu.uuid, architecture=gpu.architecture, mig=reported)


def promised(node: MigNode, status: GpuStatus, wanted: WantedGpu | None, claims: Claims) -> list[PromisedDevice]:
    """The promised devices that the operator writes beside the wanted state."""
    tables = mig_report.tables(mig_report.boards(node.scan()))
    reported = GpuNodeStatus(driver="gpu.nvidia.com", gpus=[status], boards=tables)
    allocated = {device: claim for device, (claim,) in claims.holders.items()}
    return promises(GpuNode(status=reported), [wanted] if wanted else [], allocated)


def foreseen(status: GpuStatus, made: GpuPlan) -> tuple[list[tuple[str, int]], bool]:
    """The instances that the plan predicts, by start, and whether MIG mode is then on."""
    destroyed = {(each.profile, each.start) for each in made.destroys}
    there = [(each.profile, each.start) for each in (status.mig.instances if status.mig else ())]
    stays = [each for each in there if each not in destroyed]
    stays += [(each.profile.name, each.start) for each in made.makes]
    now = status.mig is not None and status.mig.enabled
    return sorted(stays, key=lambda each: each[1]), made.mode_change == "on" if made.switches_now else now


def instances(status: GpuStatus) -> list[tuple[str, int]]:
    """The existing instances, by start."""
    there = status.mig.instances if status.mig else ()
    return sorted(((each.profile, each.start) for each in there), key=lambda each: each[1])


def disturb(random: Random, node: MigNode, board: Board, claims: Claims) -> None:
    """A claim is allocated, started or deleted, or somebody creates an instance by hand."""
    kind = random.choice(["come", "come", "come and start", "start", "go", "foreign"])
    if "come" in kind:
        claims.come()
    if "start" in kind:
        claims.start(node)
    elif kind == "go":
        claims.go(node)
    elif kind == "foreign":
        placement = random.choice(board.placements)
        try:
            by_hand.create_instance(node.path, 0, placement.profile.name, start=placement.start)
        except StateError:
            return


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_an_agent_does_what_is_foreseen_by_its_report(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    build(tmp_path)
    node = MigNode(tmp_path)
    board = node.gpus[0].board
    assert board is not None
    claims = Claims(random, board)
    for _ in range(CHANGES):
        disturb(random, node, board, claims)
        wanted = something_wanted(random, board, node.uuid)
        node.keep = keeping(wanted, board)
        status = status_of(node)
        told = promised(node, status, wanted, claims)
        plan = plan_gpu(observed(status, board, claims.holders), wanted, told)
        node.layouts.apply(node.uuid, wanted, told)
        after = status_of(node)
        expected, enabled = foreseen(status, plan)
        assert after.mig is not None
        assert after.mig.enabled is enabled
        if wanted is not None and wanted.warm:
            # The agent chooses by age which of several idle instances of a profile stay.
            assert Counter(name for name, _ in instances(after)) == Counter(name for name, _ in expected)
        else:
            assert instances(after) == expected, f"{wanted}\n{plan}"
        left = plan_gpu(observed(after, board, claims.holders), wanted, told)
        assert (left.destroys, left.makes, left.switches_now) == ((), (), False), f"{plan}\n{left}"


def two_halves(node: MigNode) -> WantedGpu:
    layout = [WantedInstance(profile="3g.40gb", start=start) for start in (0, 4)]
    return WantedGpu(uuid=node.uuid, policy="pool", mode=MigMode.STATIC, layout=layout)


def test_a_step_of_a_plan_that_fails_ends_it_and_is_told(tmp_path: Path) -> None:
    """No instance is created on a GPU whose idle instances could not be destroyed, nor if changing the mode failed."""
    build(tmp_path)
    node = MigNode(tmp_path)
    halves = two_halves(node)
    assert node.layouts.apply(node.uuid, halves) == ""
    faults.fail(node.path, "nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_UNKNOWN, times=9)
    whole = msgspec.structs.replace(halves, layout=[WantedInstance(profile="7g.80gb", start=0)])
    assert "nvmlGpuInstanceDestroy" in node.layouts.apply(node.uuid, whole)
    assert [(use, start) for _, start, use in node.uses()] == [(Use.ORPHAN, 0), (Use.ORPHAN, 4)]


def test_reading_and_planning_again_asks_nvml_nothing_more(tmp_path: Path) -> None:
    """The agent looks at the GPU at the end of every step, and plans the next step from that."""
    build(tmp_path)
    node = MigNode(tmp_path)
    halves = two_halves(node)
    looks: Counter[str] = Counter()
    observe = node.mig.observe
    node.mig.observe = lambda uuid: (looks.update([uuid]), observe(uuid))[1]  # type: ignore[method-assign]
    node.layouts.apply(node.uuid, halves)
    assert looks[node.uuid] == 2, "one before, and one that sees what was made"
    node.layouts.apply(node.uuid, halves)
    assert looks[node.uuid] == 3, "one look where there is nothing to do"
