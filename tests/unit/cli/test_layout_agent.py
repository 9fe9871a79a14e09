"""What `draco layout plan` foretells is what an agent does: both are asked, on simulated NVML, again and again."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from draco.agent import mig_report
from draco.agent.errors import PrepareError
from draco.agent.holdings import keeping
from draco.agent.partitions import partition_name
from draco.cli.layout_schema import PlaceView, Use
from draco.cli.layout_steps import Scene, Steps, steps
from draco.cli.layout_view import parts_of
from draco.mig.board import Board, Placement
from draco.mig.geometry import geometry
from draco.mig_policy import promises
from draco.resources.claims import ResourceClaim
from draco.resources.draco import (
    GpuNode,
    GpuNodeStatus,
    GpuStatus,
    MigMode,
    ProfileCount,
    PromisedDevice,
    WantedGpu,
    WantedInstance,
)
from draco.resources.partition_names import read_partition_name
from draco.simulator import by_hand
from draco.simulator.state import StateError
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build

CHANGES = 8


def a_layout(random: Random, board: Board, most: int = 5) -> list[Placement]:
    """Instances that go beside each other."""
    space, state, chosen = geometry(board), geometry(board).empty, []
    for _ in range(random.randint(1, most)):
        if fitting := space.fits(state):
            chosen.append(random.choice(fitting))
            state = space.add(state, chosen[-1])
    return chosen


class Claims:
    """Who was allocated what, as a scheduler does it: never two claims on the same units or engines."""

    def __init__(self, random: Random, board: Board) -> None:
        self._random = random
        self._board = board
        self._promised: dict[str, ResourceClaim] = {}
        self._prepared: dict[str, ResourceClaim] = {}

    @property
    def holders(self) -> dict[str, list[str]]:
        """The claims of each device."""
        claims = [*self._promised.values(), *self._prepared.values()]
        return {device.device: [str(claim.metadata.key)] for claim in claims for device in claim.devices_held}

    def come(self) -> None:
        """A claim is allocated somewhere; its pod may start later, or never."""
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
        """The pod of a claim starts; what others made by hand may be in its way."""
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


def scene_of(node: MigNode, board: Board, claims: Claims) -> Scene:
    """The GPU as the agent reports it, with the claims that are allocated."""
    gpu = node.scan()[0]
    reported = mig_report.mig(gpu, node.mig.divisions, mig_report.boards([gpu]))
    status = GpuStatus(device="gpu-0", uuid=gpu.uuid, architecture=gpu.architecture, mig=reported)
    return Scene(gpu=status, board=board, parts=parts_of(status, board, claims.holders))


def told(node: MigNode, scene: Scene, wanted: WantedGpu | None, claims: Claims) -> list[PromisedDevice]:
    """What the operator writes beside what is wanted."""
    names = mig_report.boards(node.scan())
    status = GpuNodeStatus(driver="gpu.nvidia.com", gpus=[scene.gpu], boards=mig_report.tables(names))
    allocated = {device: claim for device, (claim,) in claims.holders.items()}
    return promises(GpuNode(status=status), [wanted] if wanted else [], allocated)


def foretold(scene: Scene, made: Steps) -> tuple[list[PlaceView], bool]:
    """What is to be there, and whether MIG is to be on."""
    destroyed = {(each.profile, each.start) for each in made.destroys}
    stays = [PlaceView(profile=part.profile, start=part.start) for part in scene.parts if part.use is not Use.COMING]
    there = [each for each in stays if (each.profile, each.start) not in destroyed] + list(made.makes)
    stays_on = made.mode_change == "off" and bool(made.waits)
    enabled = made.mode_change == "on" or (scene.enabled and (not made.mode_change or stays_on))
    return sorted(there, key=lambda each: each.start), enabled


def disturb(random: Random, node: MigNode, board: Board, claims: Claims) -> None:
    """Let a claim come, start or go, or somebody make an instance by hand."""
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


@pytest.mark.parametrize("seed", range(10))
def test_an_agent_does_what_the_plan_foretells(tmp_path: Path, seed: int) -> None:
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
        scene = scene_of(node, board, claims)
        made = steps(scene, wanted)
        node.layouts.apply(node.uuid, wanted, told(node, scene, wanted, claims))
        after = scene_of(node, board, claims)
        there = [
            PlaceView(profile=part.profile, start=part.start) for part in after.parts if part.use is not Use.COMING
        ]
        expected, enabled = foretold(scene, made)
        assert after.enabled is enabled
        if wanted is not None and wanted.warm:
            # Which of several idle instances of a profile stays is the agent's choice, by their age.
            assert Counter(each.profile for each in there) == Counter(each.profile for each in expected)
        else:
            assert there == expected, f"{wanted}\n{made}"
