"""GPUs without MIG are handed over to Draco and back like others."""

from pathlib import Path

import pytest

from draco.kube.connect.client import Client
from draco.resources.api.draco import MigPolicy
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import ALLOCATION_REGISTERS, MIG_POLICIES, PODS, SLICES
from tests.component.allocation.lab import ALLOCATING, REGISTER, Guarded, make_claim, until_allocated
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import GPUS, make_pod, running, until_running

POLICY = ObjectKey("", "draco")


@pytest.mark.parametrize("board", ["T4", "L40S"])
async def test_gpus_without_mig_are_handed_over_and_back(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path, board: str
) -> None:
    async def as_wanted() -> MigPolicy | None:
        policy = await handed_over.get(MIG_POLICIES, POLICY)
        return policy if policy.status.applied == GPUS else None

    async def handed_back() -> bool:
        register = await handed_over.get(ALLOCATION_REGISTERS, REGISTER)
        slices = await handed_over.list(SLICES, field_selector="spec.nodeName=sim-1")
        return not register.spec.pools and not any(device.taints for each in slices for device in each.spec.devices)

    async with running(handed_over, folder, board=board), an_operator(guarded, ALLOCATING):
        await make_claim(handed_over, namespace, "whole")
        claim = await until_allocated(handed_over, namespace, "whole")
        assert {each.pool for each in claim.results} == {"sim-1"}
        await make_pod(handed_over, namespace, "pod", "whole")
        await until_running(handed_over, namespace, "pod")
        assert (await handed_over.get(PODS, ObjectKey(namespace, "pod"))).spec.node_name == "sim-1"
        policy = await until(as_wanted, what="the state of the policy")
        assert policy.status.message == f"{GPUS} GPUs set up as the policy asks."
        # Another mode does not apply to them, and the policy says so.
        await handed_over.patch(MIG_POLICIES, POLICY, {"spec": {"mode": "Dynamic"}})
        await until(handed_back, what="the way back")

        async def said() -> bool:
            said = (await handed_over.get(MIG_POLICIES, POLICY)).status.message
            return f"{GPUS} without MIG, which a policy of mode Disabled hands over to Draco" in said

        await until(said, what="what the policy says")
