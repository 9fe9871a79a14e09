"""What `draco layout plan` foretells is what an agent does: both are asked, on simulated NVML, again and again."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from draco.agent import mig_report
from draco.agent.errors import PrepareError
from draco.agent.holdings import keeping
from draco.agent.partitions import partition_name
from draco.cli.layout_schema import PlaceView
from draco.cli.layout_steps import Scene, Steps, steps
from draco.cli.layout_view import parts_of
from draco.mig.board import Board, Placement
from draco.mig.geometry import geometry
from draco.resources.claims import ResourceClaim
from draco.resources.draco import GpuStatus, MigMode, ProfileCount, WantedGpu, WantedInstance
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


def something_wanted(random: Random, board: Board, uuid: str) -> WantedGpu | None:
    mode = random.choice([MigMode.STATIC, MigMode.STATIC, MigMode.STATIC, MigMode.DYNAMIC, MigMode.DISABLED, None])
    if mode is None:
        return None
    layout = a_layout(random, board) if mode is MigMode.STATIC else []
    warm = random.sample(board.profiles, 2) if mode is MigMode.DYNAMIC else []
    return WantedGpu(
        uuid=uuid,
        policy="policy",
        mode=mode,
        layout=[WantedInstance(profile=each.profile.name, start=each.start) for each in layout],
        warm=[ProfileCount(profile=each.name, count=random.randint(1, 2)) for each in warm],
    )


def scene_of(node: MigNode, board: Board) -> Scene:
    """The GPU as the agent reports it."""
    gpu = node.scan()[0]
    reported = mig_report.mig(gpu, node.mig.divisions, mig_report.boards([gpu]))
    status = GpuStatus(device="gpu-0", uuid=gpu.uuid, architecture=gpu.architecture, mig=reported)
    return Scene(gpu=status, board=board, parts=parts_of(status, board, {}))


def foretold(scene: Scene, made: Steps) -> tuple[list[PlaceView], bool]:
    """What is to be there, and whether MIG is to be on."""
    destroyed = {(each.profile, each.start) for each in made.destroys}
    stays = [PlaceView(profile=part.profile, start=part.start) for part in scene.parts]
    there = [each for each in stays if (each.profile, each.start) not in destroyed] + list(made.makes)
    enabled = scene.enabled if not made.mode_change or made.waits else made.mode_change == "on"
    return sorted(there, key=lambda each: each.start), enabled


def disturb(random: Random, node: MigNode, board: Board, held: dict[str, ResourceClaim]) -> None:
    """Let a claim come or go, or somebody make an instance by hand."""
    kind = random.choice(["claim", "claim", "release", "foreign"])
    placement = random.choice(board.placements)
    if kind == "claim":
        claim = a_mig_claim(f"claim-{random.random()}", partition_name("gpu-0", placement))
        try:
            node.prepare(claim)
        except PrepareError:
            return
        held[claim.metadata.name] = claim
    elif kind == "release" and held:
        node.unprepare(held.pop(random.choice(sorted(held))))
    elif kind == "foreign":
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
    held: dict[str, ResourceClaim] = {}
    for _ in range(CHANGES):
        disturb(random, node, board, held)
        wanted = something_wanted(random, board, node.uuid)
        node.keep = keeping(wanted, board)
        scene = scene_of(node, board)
        made = steps(scene, wanted)
        node.layouts.apply(node.uuid, wanted)
        after = scene_of(node, board)
        there = [PlaceView(profile=part.profile, start=part.start) for part in after.parts]
        expected, enabled = foretold(scene, made)
        assert after.enabled is enabled
        if wanted is not None and wanted.warm:
            # Which of several idle instances of a profile stays is the agent's choice, by their age.
            assert Counter(each.profile for each in there) == Counter(each.profile for each in expected)
        else:
            assert there == expected, f"{wanted}\n{made}"
