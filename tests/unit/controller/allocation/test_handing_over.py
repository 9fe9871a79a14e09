"""What the operator does when GPUs are handed over to Draco, without an API server: the register is kept in memory."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from draco.allocation.ownership.handover import GpuPlace
from draco.controller.allocation.ownership.handover import KEY, HandoverReconciler
from draco.controller.allocation.ownership.register import OwnLeadership, Register, RegisterStore
from draco.mig.known_boards import BOARDS
from draco.mig_policy.decide import NodeDecision
from draco.resources.api.allocation import RegisteredLeader
from draco.resources.api.draco import Allocator, GpuNode, MigMode, PlacementStrategy
from draco.resources.api.meta import Condition, ObjectMeta
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import ALLOCATED_BY_OPERATOR, LABEL_ALLOCATOR, NVIDIA_DRIVER, TAINT_OPERATOR_ALLOCATED
from tests.builders import a_claim, a_device, a_device_class, a_mig_node, a_mig_policy, a_node, a_slice
from tests.unit.controller.mig.test_mig_decisions import World

SETTLE_S = 0.5
ME = RegisteredLeader(identity="me", pod_uid="")
ALL = frozenset({GpuPlace(NVIDIA_DRIVER, "node-0", "gpu-0"), GpuPlace(NVIDIA_DRIVER, "node-0", "gpu-1")})


GPU = GpuPlace(NVIDIA_DRIVER, "node-0", "gpu-0")
OF_DRACO = [DeviceTaint(key=TAINT_OPERATOR_ALLOCATED, effect="NoSchedule")]
DRACOS = msgspec.structs.replace(
    a_device_class("gpu.draco.dev"),
    metadata=ObjectMeta(name="gpu.draco.dev", labels={LABEL_ALLOCATOR: ALLOCATED_BY_OPERATOR}),
)


class Lab(World):
    """A node with two tainted GPUs that a policy hands over. The operator holds the Lease; the register is in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register = Register(places=frozenset(), pools=frozenset(), leader=ME, uid="uid", resource_version="1")
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while the API server is asked for the Lease."""
        self.handover = HandoverReconciler(
            cast("Any", self),
            self.view,
            self.decisions,
            cast("RegisterStore", self),
            cast("OwnLeadership", self),
            settle_s=SETTLE_S,
        )
        self.told = 0
        self.handover.when_owned.add(self._tell)
        self.put(
            a_mig_node(board=BOARDS["H100-80GB"]),
            a_node(),
            a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.OPERATOR),
        )
        self.publish(tainted=True)

    def publish(self, *, tainted: bool) -> None:
        taints = OF_DRACO if tainted else []
        self.put(a_slice("node-0", [a_device(each.gpu, taints=taints) for each in sorted(ALL)]))

    def replace_slices(self, *slices: ResourceSlice) -> None:
        """As if the watch had reported that all other slices are gone."""
        for each in list(self.view.slices.store.values()):
            self.view.slices.store.remove(each.metadata.key)
        self.put(*slices)

    def _tell(self) -> None:
        self.told += 1

    async def list(self, *_: Any, **__: Any) -> list[Any]:
        return []

    async def read(self) -> Register:
        return self.register

    async def write(self, seen: Register, places: Iterable[GpuPlace], leader: RegisteredLeader) -> Register:
        assert seen == self.register
        self.register = msgspec.structs.replace(seen, places=frozenset(places), leader=leader)
        return self.register

    async def holds(self) -> bool:
        self.meanwhile()
        return True

    async def entry(self) -> RegisteredLeader:
        return ME

    async def until_still(self) -> None:
        """Reconcile until it asks for no further look."""
        for _ in range(50):
            again_s = await self.handover.reconcile(KEY)
            if again_s is None:
                return
            self.clock.pass_without_a_turn(again_s)
        raise AssertionError("it never comes to rest")


async def test_gpus_come_to_draco_though_a_pause_ends_while_the_api_server_is_asked() -> None:
    """The register already names this operator and is empty, so nothing is written, and no watch reports anything."""
    lab = Lab()
    lab.meanwhile = lambda: lab.clock.pass_without_a_turn(SETTLE_S)
    await lab.until_still()
    assert lab.handover.owned == ALL


async def test_what_is_published_as_dracos_and_not_to_be_given_out_is_withheld_and_told_of() -> None:
    lab = Lab()
    await lab.handover.reconcile(KEY)
    assert (lab.handover.withheld, lab.told) == (ALL, 1)
    await lab.until_still()
    assert (lab.handover.owned, lab.handover.withheld, lab.told) == (ALL, frozenset(), 2)


async def test_what_no_policy_gives_to_draco_any_more_is_withheld_until_the_taint_is_gone() -> None:
    lab = Lab()
    await lab.until_still()
    lab.put(a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.SCHEDULER))
    await lab.until_still()
    assert (lab.register.places, lab.handover.owned, lab.handover.withheld) == (frozenset(), frozenset(), ALL)
    told = lab.told
    lab.publish(tainted=False)
    await lab.until_still()
    assert (lab.handover.withheld, lab.told) == (frozenset(), told + 1)


async def test_what_is_to_be_spread_over_is_told_of() -> None:
    lab = Lab()
    await lab.until_still()
    told = lab.told
    lab.put(a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.OPERATOR, placement=PlacementStrategy.SPREAD))
    await lab.until_still()
    assert (len(lab.handover.spread), lab.told) == (1, told + 1)


async def test_a_gpunode_that_says_something_while_it_is_decided_what_policies_want_hands_no_gpu_back() -> None:
    """The decision was made from the GpuNode that an agent had just created, with an empty status."""
    lab = Lab()
    await lab.until_still()
    before = a_mig_node(board=BOARDS["H100-80GB"])
    metadata = msgspec.structs.replace(before.metadata, uid="made-again")
    lab.put(GpuNode(metadata=metadata, spec=before.spec))
    decide = lab.decisions.all

    async def all_and_then() -> list[NodeDecision]:
        found = await decide()
        lab.put(msgspec.structs.replace(before, metadata=metadata))
        return found

    lab.decisions.all = all_and_then  # type: ignore[method-assign]
    await lab.handover.reconcile(KEY)
    assert (lab.register.places, lab.handover.owned) == (ALL, ALL)


async def test_an_agent_that_reads_its_gpus_again_is_a_reason_to_look() -> None:
    """It had reported a GPU as absent while its GPUs were unreadable, so that did not count."""
    lab = Lab()
    woken: list[str] = []
    lab.handover.subscribe(woken.append)
    woken.clear()
    gpu_node = a_mig_node(board=BOARDS["H100-80GB"])
    for status in ("False", "True"):
        readable = [Condition(type="Readable", status=status)]
        lab.put(msgspec.structs.replace(gpu_node, status=msgspec.structs.replace(gpu_node.status, conditions=readable)))
    assert len(woken) == 2


def of_two(generation: int, name: str, *devices: str, tainted: bool) -> ResourceSlice:
    """One of the two slices of the node's pool."""
    made = [a_device(each, taints=OF_DRACO if tainted else []) for each in devices]
    return a_slice("node-0", made, name=name, generation=generation, of=2)


async def test_a_gpu_that_an_agent_is_publishing_again_does_not_come_to_draco_for_a_moment() -> None:
    """A claim of Draco's holds it, without a policy. If it were registered, its agent would publish it again with the taint."""
    lab = Lab()
    excluded = a_mig_node(board=BOARDS["H100-80GB"]).status.gpus[0].uuid
    lab.put(a_mig_policy(mode=MigMode.DISABLED, allocator=Allocator.OPERATOR, exclude=[excluded]))
    lab.put(DRACOS, a_claim("held", device_class=DRACOS.metadata.name, on=["node-0/gpu-0"]))
    last = of_two(1, "second", "gpu-1", tainted=True)
    lab.replace_slices(of_two(1, "first", "gpu-0", tainted=False), last)
    await lab.until_still()
    assert lab.register.places == ALL - {GPU}
    lab.replace_slices(of_two(2, "third", tainted=False))
    await lab.until_still()
    assert GPU not in lab.register.places


async def test_a_gpu_that_left_stays_in_the_register_as_long_as_a_claim_of_dracos_has_it() -> None:
    lab = Lab()
    await lab.until_still()
    lab.put(DRACOS, a_claim("held", device_class=DRACOS.metadata.name, on=["node-0/gpu-0"]))
    lab.replace_slices(a_slice("node-0", [a_device("gpu-1", taints=OF_DRACO)]))
    await lab.until_still()
    assert (lab.register.places, lab.handover.owned) == (ALL, ALL - {GPU})


async def test_a_gpu_that_left_comes_back_into_the_register_for_a_claim_that_was_being_allocated() -> None:
    """The register dropped it before the allocation was seen, and only Draco can release the claim."""
    lab = Lab()
    await lab.until_still()
    lab.replace_slices(a_slice("node-0", [a_device("gpu-1", taints=OF_DRACO)]))
    await lab.until_still()
    assert lab.register.places == ALL - {GPU}
    lab.put(DRACOS, a_claim("held", device_class=DRACOS.metadata.name, on=["node-0/gpu-0"]))
    await lab.until_still()
    assert lab.register.places == ALL


async def test_a_gpu_of_dracos_stays_so_while_its_agent_publishes_it_again() -> None:
    lab = Lab()
    lab.replace_slices(of_two(1, "first", "gpu-0", tainted=True), of_two(1, "second", "gpu-1", tainted=True))
    await lab.until_still()
    lab.put(of_two(2, "first", "gpu-0", tainted=True))
    await lab.handover.reconcile(KEY)
    assert (lab.register.places, lab.handover.owned) == (ALL, ALL)
    lab.put(of_two(2, "second", "gpu-1", tainted=False))
    await lab.handover.reconcile(KEY)
    assert lab.handover.owned == frozenset({GPU})
