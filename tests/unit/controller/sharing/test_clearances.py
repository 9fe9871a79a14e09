"""GPUs are cleared for another form: after a notice, by claims as the API server has them, and not by a lagging watch."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from draco.controller.sharing.clearances import Clearances, FormClearances
from draco.controller.sharing.decisions import SharingDecisions
from draco.kube.connect.client import Client
from draco.kube.errors import Unreachable
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import ClearedGpu, GpuNode
from draco.resources.api.sharing import SharedGpu, SharingMode
from draco.resources.api.slices import DeviceAttribute, DeviceCapacity
from draco.resources.api.taints import DeviceTaint
from draco.sharing.clearance import NOTICE_S
from tests.builders import a_claim, a_device, a_gpu_node, a_node, a_sharing_policy, a_slice, a_uid
from tests.unit.controller.mig.test_mig_decisions import World

UUID, OTHER = (f"GPU-{a_uid(node, 'gpu-0')}" for node in ("node-0", "node-1"))
GOING = DeviceTaint(key="draco.dev/unsettled", value="Withdrawn", effect="NoSchedule")


class Lab(World):
    """A node with one GPU that a policy shares, which its agent has published for one claim, with the taint."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[ResourceClaim] = []
        """What the API server has; the watch shows none of it."""
        self.lists = 0
        self.error: Exception | None = None
        self.sharing = SharingDecisions(self.view)
        self.on_their_way: list[ResourceClaim] = []
        self.clearances = FormClearances(cast("Client", self), self.view, self.sharing, lambda: self.on_their_way)
        self.put(a_node(), a_gpu_node(gpus=1), a_sharing_policy())
        self.publish(5)

    async def list(self, *_: Any) -> Sequence[ResourceClaim]:
        self.lists += 1
        if self.error is not None:
            raise self.error
        return self.claims

    def publish(self, generation: int, *, going: bool = True, of: int = 1) -> None:
        device = a_device("gpu-0", capacity={"memory": DeviceCapacity(value="80Gi")}, taints=[GOING] if going else [])
        device.attributes["uuid"] = DeviceAttribute(string=UUID)
        self.put(a_slice("node-0", [device], name="slice", generation=generation, of=of))

    def write(self, *cleared: ClearedGpu, form: SharedGpu | None = None) -> None:
        """The spec that was written."""
        node: GpuNode = next(iter(self.view.gpu_nodes.store.values()))
        asked = self.sharing.of("node-0")
        assert asked is not None
        shared = asked.shared if form is None else [form]
        self.put(
            msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, shared=shared, cleared=list(cleared)))
        )

    async def look(self, after_s: float = 0.0) -> tuple[Sequence[int], float | None]:
        """The generations at which the GPU is cleared, and when to look again."""
        await self.clock.advance(after_s)
        found: Clearances = await self.clearances.of("node-0")
        forms = self.sharing.of("node-0")
        assert forms is not None
        return [each.generation for each in found.of(forms)], found.again_s


async def test_a_gpu_that_no_claim_holds_is_cleared_after_the_notice() -> None:
    lab = Lab()
    assert await lab.look() == ([], NOTICE_S)
    assert await lab.look(NOTICE_S - 1) == ([], 1.0)
    assert lab.lists == 0
    assert await lab.look(1.0) == ([5], None)


async def test_a_claim_that_the_watch_does_not_show_yet_keeps_the_gpu_from_it() -> None:
    lab = Lab()
    lab.claims = [a_claim("late", on=["node-0/gpu-0"])]
    await lab.look()
    assert await lab.look(NOTICE_S) == ([], 1.0)
    lab.claims = [a_claim("elsewhere", on=["node-1/gpu-0"]), a_claim("waits")]
    assert await lab.look(1.0) == ([5], None)


async def test_an_allocation_that_draco_is_writing_counts() -> None:
    lab = Lab()
    lab.on_their_way = [a_claim("elsewhere", on=["node-1/gpu-0"]), a_claim("late", on=["node-0/gpu-0"])]
    await lab.look()
    assert await lab.look(NOTICE_S) == ([], 1.0)
    lab.on_their_way.pop()
    assert await lab.look() == ([5], None)


async def test_claims_that_cannot_be_read_clear_nothing() -> None:
    lab = Lab()
    lab.error = Unreachable("gone")
    await lab.look()
    assert await lab.look(NOTICE_S) == ([], 1.0)
    lab.error = None
    assert await lab.look(1.0) == ([5], None)


async def test_what_was_cleared_stays_so_and_nothing_is_read_again_until_the_pool_is_of_another_generation() -> None:
    lab = Lab()
    await lab.look()
    await lab.look(NOTICE_S)
    lab.write(ClearedGpu(uuid=UUID, generation=5))
    assert await lab.look(10.0) == ([5], None)
    assert lab.lists == 1
    lab.publish(6)
    assert await lab.look() == ([6], None)  # its agent may have been restarted, and gives notice since then
    assert lab.lists == 2


async def test_a_new_operator_gives_notice_of_its_own() -> None:
    lab = Lab()
    lab.write(ClearedGpu(uuid=UUID, generation=4))
    assert await lab.look(100.0) == ([4], NOTICE_S)
    assert await lab.look(NOTICE_S) == ([5], None)


async def test_a_generation_without_the_taint_or_unseen_ends_the_notice() -> None:
    lab = Lab()
    await lab.look()
    lab.publish(6, going=False)
    assert await lab.look(NOTICE_S) == ([], None)
    lab.publish(7)
    assert await lab.look(NOTICE_S) == ([], NOTICE_S)
    lab.publish(9)
    assert await lab.look(NOTICE_S) == ([], NOTICE_S)


async def test_a_pool_that_is_being_written_changes_nothing() -> None:
    lab = Lab()
    await lab.look()
    lab.publish(6, of=2)
    assert await lab.look(2.0) == ([], None)
    lab.publish(6)
    assert await lab.look(1.0) == ([6], None)


async def test_a_clearance_is_for_the_form_that_was_asked_for() -> None:
    lab = Lab()
    await lab.look()
    await lab.look(NOTICE_S)
    lab.write(ClearedGpu(uuid=UUID, generation=5), form=SharedGpu(uuid=UUID, policy="other", mode=SharingMode.COUNT))
    lab.claims = [a_claim("late", on=["node-0/gpu-0"])]
    assert await lab.look(10.0) == ([], 1.0)


async def test_where_nothing_is_shared_nothing_is_read() -> None:
    lab = Lab()
    policy = next(iter(lab.view.sharing_policies.store.values()))
    lab.view.sharing_policies._publish(lab.view.sharing_policies.store.remove(policy.metadata.key))
    await lab.look()
    assert await lab.look(NOTICE_S) == ([], None)
    assert lab.lists == 0


async def test_one_reading_serves_all_gpus_whose_notice_is_over() -> None:
    lab = Lab()
    device = a_device("gpu-0", capacity={"memory": DeviceCapacity(value="80Gi")}, taints=[GOING])
    device.attributes["uuid"] = DeviceAttribute(string=OTHER)
    lab.put(a_node("node-1"), a_gpu_node("node-1", gpus=1), a_slice("node-1", [device]))
    for node in ("node-0", "node-1"):
        await lab.clearances.of(node)
    await lab.clock.advance(NOTICE_S)
    found = [await lab.clearances.of(node) for node in ("node-0", "node-1")]
    assert [list(each.by_gpu) for each in found] == [[UUID], [OTHER]]
    assert lab.lists == 1
