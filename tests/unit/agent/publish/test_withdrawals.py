"""A device is tainted before it is withdrawn, long enough for others to see the taint."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from draco.agent.hardware.faults import with_fault
from draco.agent.hardware.gpus import DriverInfo, Gpu, GpuMigView
from draco.agent.publish.offering import DeviceOffer, Offering
from draco.agent.publish.withdrawals import LOOK_S
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import MigMode, PromisedDevice, WantedGpu, WantedInstance
from draco.resources.api.sharing import Enforcement, SharedGpu, SharingMode
from draco.sharing.clearance import NOTICE_S
from tests.builders import a_gpu

DRIVER = DriverInfo("580.65.06", "13.0", "13.580.65.06")
GPU = a_gpu(0)
UUID = GPU.uuid
MIG = GpuMigView(gpu=UUID, board=BOARDS["H100-80GB"])
SMALL = "gpu-0-mig-1g10gb-19-5"
WITHDRAWN = ("draco.dev/unsettled", "Withdrawn", "NoSchedule")


class Node:
    """A node with one GPU; the test sets the time."""

    def __init__(self, *, partitionable: bool = True) -> None:
        self.offering, self.now_s = Offering(partitionable=partitionable), 0.0
        self.generation = 7

    def offers(
        self,
        mode: MigMode | None,
        *,
        gpu: Gpu = GPU,
        mig: GpuMigView = MIG,
        written: bool = True,
        promised: Sequence[PromisedDevice] = (),
        shared: SharedGpu | None = None,
        cleared: int | None = None,
        **wanted: Any,
    ) -> DeviceOffer:
        wishes = {UUID: WantedGpu(uuid=UUID, policy="p", mode=mode, **wanted)} if mode else {}
        return self.offering.offer(
            [gpu],
            DRIVER,
            migs={UUID: mig},
            wanted=wishes,
            promised={UUID: promised},
            shared={UUID: shared} if shared else {},
            written=written,
            generation=self.generation,
            cleared={} if cleared is None else {UUID: cleared},
            now_s=self.now_s,
        )


@pytest.fixture
def node() -> Node:
    return Node()


def names(offer: DeviceOffer) -> set[str]:
    return {one.name for one in offer.devices}


def withdrawn(offer: DeviceOffer) -> set[str]:
    return {one.name for one in offer.devices if WITHDRAWN in [(t.key, t.value, t.effect) for t in one.taints]}


def test_partitions_of_a_policy_that_goes_stay_counted_and_tainted_and_the_whole_gpu_can_be_had(node: Node) -> None:
    before = node.offers(MigMode.DYNAMIC)
    offer = node.offers(None)
    assert names(offer) == names(before)
    assert withdrawn(offer) == names(before) - {"gpu-0"}
    assert offer.counters == before.counters
    assert all(one.consumes_counters for one in offer.devices)


def test_they_go_when_the_notice_has_been_written_for_long_enough(node: Node) -> None:
    node.offers(MigMode.DYNAMIC)
    node.offers(None)
    for node.now_s in (1.0, 100.0):  # the API server does not accept it
        offer = node.offers(None, written=False)
        assert (SMALL in withdrawn(offer), offer.again_in_s) == (True, LOOK_S)
    assert node.offers(None).again_in_s == NOTICE_S
    node.now_s += NOTICE_S - 0.1
    assert SMALL in withdrawn(node.offers(None))
    node.now_s += 0.1
    offer = node.offers(None)
    assert (names(offer), withdrawn(offer), offer.counters) == ({"gpu-0"}, set(), [])


def test_a_place_that_is_promised_meanwhile_stays_and_the_rest_goes(node: Node) -> None:
    node.offers(MigMode.DYNAMIC)
    node.offers(None)
    promised = [PromisedDevice(uuid=UUID, device=SMALL, claim="a/late")]
    assert SMALL not in withdrawn(node.offers(None, promised=promised))
    node.now_s += NOTICE_S
    assert names(node.offers(None, promised=promised)) == {"gpu-0", SMALL}


def test_a_layout_that_leaves_no_room_for_the_whole_gives_notice_of_that() -> None:
    layout = [WantedInstance(profile="1g.10gb", start=5)]
    node = Node(partitionable=False)
    node.offers(None)
    offer = node.offers(MigMode.STATIC, layout=layout)
    assert (names(offer), withdrawn(offer)) == ({"gpu-0"}, {"gpu-0"})
    node.offers(MigMode.STATIC, layout=layout)
    node.now_s += NOTICE_S
    assert names(node.offers(MigMode.STATIC, layout=layout)) == {SMALL}


def test_a_gpu_of_which_nothing_goes_is_offered_anew_at_once(node: Node) -> None:
    node.offers(None)
    offer = node.offers(MigMode.DYNAMIC)
    assert (SMALL in names(offer), withdrawn(offer)) == (True, set())


def test_what_is_wanted_again_within_the_notice_is_free_at_once_and_has_a_new_notice_when_it_goes(node: Node) -> None:
    node.offers(MigMode.DYNAMIC)
    node.offers(None)
    node.now_s += 1.0
    node.offers(None)
    assert withdrawn(node.offers(MigMode.DYNAMIC)) == set()
    node.now_s += NOTICE_S
    assert SMALL in withdrawn(node.offers(None))
    assert SMALL in withdrawn(node.offers(None))


def test_what_goes_later_has_its_own_notice(node: Node) -> None:
    node.offers(MigMode.DYNAMIC)
    only: dict[str, Any] = {"profiles": ["1g.10gb"]}
    assert node.offers(MigMode.DYNAMIC, **only).again_in_s == LOOK_S
    node.now_s += 1.0
    assert SMALL not in withdrawn(node.offers(MigMode.DYNAMIC, **only))
    node.now_s += NOTICE_S - 0.5
    assert SMALL in withdrawn(node.offers(None))
    node.now_s += 0.5
    offer = node.offers(None)
    assert (SMALL in withdrawn(offer), offer.again_in_s) == (True, NOTICE_S)


def test_what_is_about_to_go_still_tells_its_faults(node: Node) -> None:
    node.offers(MigMode.DYNAMIC)
    sick = with_fault(GPU, "Xid79", "It has fallen off the bus.")
    [part] = [one for one in node.offers(None, gpu=sick).devices if one.name == SMALL]
    assert {taint.value for taint in part.taints} == {"Withdrawn", "Xid79"}


def test_a_gpu_that_left_or_was_replaced_is_not_held_on_to(node: Node) -> None:
    node.offers(MigMode.DYNAMIC)
    assert names(node.offers(None, mig=GpuMigView(gpu=UUID, board=BOARDS["A100-40GB"]))) == {"gpu-0"}
    node.offers(MigMode.DYNAMIC)
    node.offering.offer([], DRIVER, migs={}, wanted={}, now_s=node.now_s)
    assert names(node.offers(None)) == {"gpu-0"}


MEMORY = SharedGpu(uuid=UUID, policy="p", mode=SharingMode.MEMORY, step="1Gi")


def shareable(offer: DeviceOffer) -> set[str]:
    return {one.name for one in offer.devices if one.allow_multiple_allocations}


def test_a_gpu_is_tainted_in_its_old_form_before_several_claims_may_have_it(node: Node) -> None:
    """A claim that kube-scheduler gives the whole GPU at that moment would not be counted against its shares."""
    node.offers(None)
    offered = node.offers(None, shared=MEMORY)
    assert (shareable(offered), withdrawn(offered), offered.again_in_s) == (set(), {"gpu-0"}, LOOK_S)
    node.offers(None, shared=MEMORY)
    node.now_s = NOTICE_S
    offered = node.offers(None, shared=MEMORY, cleared=7)
    assert (shareable(offered), withdrawn(offered)) == ({"gpu-0"}, set())
    back = node.offers(None, cleared=7)
    assert (shareable(back), withdrawn(back)) == ({"gpu-0"}, {"gpu-0"})


def test_without_an_operator_that_clears_it_a_gpu_stays_tainted_in_its_old_form(node: Node) -> None:
    """A claim may have been allocated at the last moment, and nobody is there to say so."""
    node.offers(None)
    node.offers(None, shared=MEMORY)
    node.offers(None, shared=MEMORY)
    for node.now_s in (NOTICE_S, 1000.0):
        offered = node.offers(None, shared=MEMORY)
        assert (shareable(offered), withdrawn(offered), offered.again_in_s) == (set(), {"gpu-0"}, None)
    assert shareable(node.offers(None, shared=MEMORY, cleared=6)) == set()  # of an earlier taint
    node.generation = 9  # something else was published meanwhile
    assert shareable(node.offers(None, shared=MEMORY, cleared=7)) == {"gpu-0"}


def test_a_gpu_is_not_cleared_before_its_taint_has_been_there_for_long_enough(node: Node) -> None:
    node.offers(None)
    node.offers(None, shared=MEMORY)
    assert shareable(node.offers(None, shared=MEMORY, cleared=8, written=False)) == set()
    node.offers(None, shared=MEMORY, cleared=8)
    node.now_s = NOTICE_S - 0.1
    assert shareable(node.offers(None, shared=MEMORY, cleared=8)) == set()


def test_a_clearance_is_void_once_the_change_was_given_up(node: Node) -> None:
    node.offers(None)
    node.offers(None, shared=MEMORY)
    node.offers(None, shared=MEMORY)
    node.now_s = NOTICE_S
    node.offers(None)
    node.generation = 9
    node.offers(None, shared=MEMORY)
    node.offers(None, shared=MEMORY, cleared=7)
    node.now_s = 3 * NOTICE_S
    assert shareable(node.offers(None, shared=MEMORY, cleared=7)) == set()
    assert shareable(node.offers(None, shared=MEMORY, cleared=9)) == {"gpu-0"}


def test_partitions_go_without_a_clearance_as_their_allocations_are_promised(node: Node) -> None:
    node.offers(MigMode.DYNAMIC)
    node.offers(None)
    node.offers(None)
    node.now_s = NOTICE_S
    assert names(node.offers(None)) == {"gpu-0"}


def test_a_gpu_that_was_allocated_at_the_last_moment_keeps_its_form(node: Node) -> None:
    node.offers(None)
    node.offers(None, shared=MEMORY)
    offered = node.offers(None)  # the operator has seen the claim
    assert (shareable(offered), withdrawn(offered), offered.again_in_s) == (set(), set(), None)


def test_amounts_change_without_notice(node: Node) -> None:
    node.offers(None, shared=MEMORY)
    offered = node.offers(None, shared=msgspec.structs.replace(MEMORY, default="10Gi"))
    assert (shareable(offered), withdrawn(offered)) == ({"gpu-0"}, set())
    policy = offered.devices[0].capacity["memory"].request_policy
    assert policy is not None
    assert policy.default == "10Gi"


def test_terms_that_a_device_cannot_have_leave_it_to_one_claim() -> None:
    assert shareable(Node().offers(None, shared=msgspec.structs.replace(MEMORY, default="100Gi"))) == set()


def test_shares_are_limited_only_by_a_driver_that_can() -> None:
    limited = msgspec.structs.replace(MEMORY, enforcement=Enforcement.DRIVER_LIMIT)
    expected: dict[bool | None, set[str]] = {True: {"gpu-0"}, None: {"gpu-0"}, False: set()}
    for can, shared in expected.items():
        gpu = msgspec.structs.replace(GPU, memory_limits=can)
        offered = Node().offers(None, gpu=gpu, shared=limited)
        assert shareable(offered) == shared
        assert offered.devices[0].attributes["draco.dev/memoryLimit"].string == ("none" if can is False else "driver")
    plain = Node().offers(None, gpu=msgspec.structs.replace(GPU, memory_limits=True), shared=MEMORY)
    assert plain.devices[0].attributes["draco.dev/memoryLimit"].string == "none"


def test_a_shared_gpu_whose_memory_cannot_be_read_stays_as_claims_hold_it() -> None:
    unread = msgspec.structs.replace(GPU, memory_bytes=None)
    node = Node()
    before = node.offers(None, shared=MEMORY)
    offered = node.offers(None, gpu=unread, shared=MEMORY)
    assert (shareable(offered), withdrawn(offered)) == ({"gpu-0"}, set())
    assert offered.devices[0].capacity == before.devices[0].capacity
    again = Node()  # the same after a restart
    again.offering.recall({UUID: MEMORY}, node.offering.memory)
    assert again.offers(None, gpu=unread, shared=MEMORY).devices[0].capacity == before.devices[0].capacity
    assert shareable(Node().offers(None, gpu=unread, shared=MEMORY)) == set()


def test_shares_that_a_driver_no_longer_limits_stay_shares_and_get_no_new_ones() -> None:
    limited = msgspec.structs.replace(MEMORY, enforcement=Enforcement.DRIVER_LIMIT)
    node = Node()
    able, unable = (msgspec.structs.replace(GPU, memory_limits=can) for can in (True, False))
    assert withdrawn(node.offers(None, gpu=able, shared=limited)) == set()
    offered = node.offers(None, gpu=unable, shared=limited)
    assert shareable(offered) == {"gpu-0"}
    assert ("draco.dev/unsettled", "Sharing") in {(each.key, each.value) for each in offered.devices[0].taints}


def test_mig_devices_are_shared_where_that_is_asked() -> None:
    layout = [WantedInstance(profile="1g.10gb", start=5)]
    offered = Node().offers(MigMode.STATIC, layout=layout, shared=MEMORY)
    assert shareable(offered) == set()
    offered = Node().offers(MigMode.STATIC, layout=layout, shared=msgspec.structs.replace(MEMORY, mig_devices=True))
    assert shareable(offered) == {SMALL}
    (part,) = offered.devices
    assert all(each.request_policy for each in part.capacity.values())


def test_a_restarted_agent_gives_notice_of_a_change_of_form_too(node: Node) -> None:
    """It may end between the wish and the notice, and kube-scheduler sees the old slices meanwhile."""
    node.offering.recall({UUID: None}, {})
    offered = node.offers(None, shared=MEMORY)
    assert (shareable(offered), withdrawn(offered)) == (set(), {"gpu-0"})
    again = Node()
    again.offering.recall({UUID: MEMORY}, {})
    offered = again.offers(None, shared=msgspec.structs.replace(MEMORY, default="10Gi"))
    assert (shareable(offered), withdrawn(offered)) == ({"gpu-0"}, set())
