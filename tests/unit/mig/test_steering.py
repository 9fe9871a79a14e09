"""The published order makes a scheduler that takes the first fitting device choose as the replays of `steered` assume."""

import random

import pytest

from draco.agent.hardware.gpus import GpuMigView, HeldInstance, Instance, Use
from draco.agent.publish import partitions
from draco.agent.publish.partitions import Divisible, Place
from draco.mig.board import Placement
from draco.mig.geometry import BoardPool, Choice, geometry
from draco.mig.known_boards import BOARDS
from tests.builders import a_gpu

GPUS = [a_gpu(minor) for minor in range(8)]


def a_node(board_name: str, chance: random.Random) -> list[Divisible]:
    """Eight GPUs with instances that claims hold."""
    board = BOARDS[board_name]
    made = geometry(board)
    node = []
    for gpu in GPUS:
        held: list[HeldInstance] = []
        state = made.empty
        while chance.random() < 0.75 and (fitting := made.fits(state)):
            placement = chance.choice(fitting)
            state = made.add(state, placement)
            profile = placement.profile
            instance = Instance(
                gpu=gpu.uuid, gi=len(held), profile_id=profile.id, start=placement.start, size=profile.size
            )
            held.append(HeldInstance(instance=instance, use=Use.CLAIM))
        mig = GpuMigView(gpu=gpu.uuid, board=board, held=tuple(held))
        node.append(Divisible(gpu=gpu, mig=mig, board=board))
    return node


@pytest.mark.parametrize("name", ["H100-80GB", "A30", "RTX-PRO-6000"])
def test_the_first_published_device_that_fits_is_the_one_the_rule_would_take(name: str) -> None:
    chance = random.Random(name)
    for _ in range(30):
        node = a_node(name, chance)
        states = {gpu.uuid: gpu.state for gpu in node}
        order = partitions.order(node)
        for profile in BOARDS[name].profiles:
            made = node[0].space
            fitting = (p for p in order if p.placement.profile == profile and made.fits_at(states[p.gpu], p.placement))
            assert next(fitting, None) == as_place(BoardPool(made, states.values()).choose(profile))


@pytest.mark.parametrize("name", ["H100-80GB", "A30", "RTX-PRO-6000"])
def test_claims_that_come_faster_than_an_order_is_published_go_where_each_would_have_gone_by_a_fresh_one(
    name: str,
) -> None:
    chance = random.Random(name)
    for _ in range(10):
        node = a_node(name, chance)
        made, order = node[0].space, partitions.order(node)
        for profile in BOARDS[name].profiles:
            states = {gpu.uuid: gpu.state for gpu in node}
            while choice := BoardPool(made, states.values()).choose(profile):
                fitting = (p for p in order if p.placement.profile == profile)
                first = next(p for p in fitting if made.fits_at(states[p.gpu], p.placement))
                assert first == as_place(choice)
                states[first.gpu] = made.add(states[first.gpu], first.placement)


def as_place(choice: Choice | None) -> Place | None:
    return None if choice is None else Place(GPUS[choice.gpu].uuid, Placement(choice.placement.profile, choice.start))
