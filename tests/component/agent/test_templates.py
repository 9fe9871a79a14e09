"""Slice templates written from a board are what the agent publishes on a node with that board."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from draco.cli.autoscale.templates import NoTemplate, SliceTemplate, of_board, of_node
from draco.kube.connect.client import Client
from draco.mig.known_boards import BOARDS
from draco.mig_policy.decide import wanted_of
from draco.resources.api.draco import GpuMig, MigMode, MigPolicy, WantedGpu
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES
from draco.resources.names import ATTRIBUTE_MEMORY_LIMIT, ATTRIBUTE_MPS, ATTRIBUTE_TIME_SLICING, FIELD_MANAGER_OPERATOR
from draco_local.simulator.gpus import state
from tests.agents import SimulatedNode, eventually
from tests.builders import a_mig_policy, a_static_policy

OF_THE_MACHINE = {
    "driverVersion",
    "cudaDriverVersion",
    "addressingMode",
    "resource.kubernetes.io/pciBusID",
    "resource.kubernetes.io/pcieRoot",
    "resource.kubernetes.io/numaNode",
    ATTRIBUTE_MEMORY_LIMIT,
    ATTRIBUTE_MPS,
    ATTRIBUTE_TIME_SLICING,
}
"""Attributes that only a live node knows."""


def known_beforehand(templates: Sequence[SliceTemplate]) -> list[SliceTemplate]:
    return [
        msgspec.structs.replace(
            each,
            devices=[
                msgspec.structs.replace(
                    one, attributes={name: v for name, v in one.attributes.items() if name not in OF_THE_MACHINE}
                )
                for one in each.devices
            ],
        )
        for each in templates
    ]


def by_name(templates: Sequence[SliceTemplate]) -> list[SliceTemplate]:
    return [msgspec.structs.replace(each, devices=sorted(each.devices, key=lambda one: one.name)) for each in templates]


@pytest.mark.parametrize(
    ("board", "policy"),
    [
        ("H100-80GB", None),
        ("A30", None),
        ("L40S", None),
        ("T4", None),
        ("H100-80GB", a_mig_policy()),
        ("H100-80GB", a_mig_policy(profiles=["1g.10gb", "3g.40gb"])),
        ("H200-141GB", a_static_policy("policy", "3g.71gb", "4x1g.18gb")),
        ("A100-80GB", a_mig_policy()),
        ("B200", a_mig_policy(mode=MigMode.DISABLED)),
    ],
)
async def test_a_board_and_a_policy_make_what_the_agent_publishes(
    client: Client, namespace: str, crds: None, board: str, policy: MigPolicy | None
) -> None:
    node = SimulatedNode(client, gpus=2, board=board)
    node.namespace = namespace
    if board == "A100-80GB":  # its MIG mode changes only with a reset, which a new node has had
        with state.mutate(node.gpus) as hardware:
            for gpu in hardware.gpus:
                gpu.mig_current = gpu.mig_pending = 1
    await node.create()
    expected = of_board(board, 2, policy)
    async with node.running():
        if policy is not None:
            await follow(node, policy, board)

        async def alike() -> bool:
            try:
                found = known_beforehand(of_node(node.name, await node.slices()))
            except NoTemplate:  # not completely written yet
                return False
            if (
                policy is not None and policy.spec.mode is MigMode.STATIC
            ):  # the instances exist by now, so devices are reordered
                return by_name(found) == by_name(expected)
            return found == expected

        await eventually(alike, within_s=30)
    await node.delete()


async def follow(node: SimulatedNode, policy: MigPolicy, board: str) -> None:
    """Write the wanted state of the node's GPUs for a policy, as the operator does."""
    key = ObjectKey("", node.name)
    await eventually(lambda: node.client.get(GPU_NODES, key))
    wanted: list[Any] = []
    for gpu in state.load(node.gpus).gpus:
        found = wanted_of(policy, gpu.uuid, GpuMig(capable=True), BOARDS[board])
        assert isinstance(found, WantedGpu)
        wanted.append(msgspec.to_builtins(found))
    await node.client.apply(GPU_NODES, key, {"spec": {"gpus": wanted}}, manager=FIELD_MANAGER_OPERATOR)
