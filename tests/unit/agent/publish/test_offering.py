"""Which devices a node offers in each mode, and when a new order is published."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from draco.agent.hardware.faults import with_fault
from draco.agent.hardware.gpus import DriverInfo, Gpu, GpuMigView, HeldInstance, Instance, Use
from draco.agent.hardware.monitor import HardwareView
from draco.agent.publish.forms import held_forms
from draco.agent.publish.offering import PATIENCE_S, TRIED_S, DeviceOffer, Offering, Offers
from draco.agent.publish.partitions import partition_name
from draco.agent.record.contents import PreparationState, PreparedClaim, PreparedDevice
from draco.agent.state.changes import ClaimSettled
from draco.agent.state.facts import WantedNode
from draco.agent.state.node import NodeState
from draco.allocation.fleet.hardware import PoolHardware
from draco.mig.board import Placement
from draco.mig.known_boards import BOARDS
from draco.resources.api.draco import IsolatedGpu, MigMode, MigState, PromisedDevice, WantedGpu, WantedInstance
from draco.resources.api.sharing import SharedGpu, SharingMode
from draco.resources.api.slices import Device
from draco.resources.names import ClaimUid
from draco.sharing.terms import as_shareable, terms_for
from tests.builders import a_gpu, a_slice
from tests.doubles.clock import ManualClock

DRIVER = DriverInfo("580.65.06", "13.0", "13.580.65.06")
H100 = BOARDS["H100-80GB"]
LAYOUT = [WantedInstance(profile="3g.40gb", start=4), WantedInstance(profile="4g.40gb", start=0)]


def ampere(minor: int) -> Gpu:
    return msgspec.structs.replace(a_gpu(minor), architecture="Ampere", compute_major=8)


def a_mig(gpu: Gpu, *there: tuple[str, int, Use], enabled: bool = False) -> GpuMigView:
    uuid = gpu.uuid
    held = []
    for name, start, use in there:
        profile = H100.profile(name)
        assert profile is not None
        instance = Instance(gpu=uuid, gi=1 + start, profile_id=profile.id, start=start, size=profile.size)
        held.append(HeldInstance(instance=instance, use=use))
    return GpuMigView(gpu=uuid, board=H100, enabled=enabled or bool(there), held=tuple(held))


def offer(
    gpu: Gpu,
    mig: GpuMigView | None,
    mode: MigMode | None = None,
    *,
    partitionable: bool = True,
    promised: Sequence[PromisedDevice] = (),
    offering: Offering | None = None,
    **fields: Any,
) -> DeviceOffer:
    uuid = gpu.uuid
    wanted = {uuid: WantedGpu(uuid=uuid, policy="p", mode=mode, **fields)} if mode else {}
    migs = {uuid: mig} if mig else {}
    offering = offering or Offering(partitionable=partitionable)
    return offering.offer([gpu], DRIVER, migs=migs, wanted=wanted, promised={uuid: promised}, now_s=0.0)


def names(offered: DeviceOffer) -> list[str]:
    return [one.name for one in offered.devices]


def taints(offered: DeviceOffer) -> set[tuple[str, str]]:
    return {(taint.key, taint.value) for one in offered.devices for taint in one.taints}


def test_without_a_policy_a_gpu_is_offered_whole_as_if_there_were_no_mig() -> None:
    gpu = a_gpu(0)
    for mig, mode in ((None, None), (a_mig(gpu), None), (a_mig(gpu), MigMode.DISABLED)):
        offered = offer(gpu, mig, mode)
        assert names(offered) == ["gpu-0"]
        assert (offered.counters, taints(offered), offered.devices[0].consumes_counters) == ([], set(), [])


def test_a_gpu_of_which_nobody_knows_how_it_is_divided_takes_nothing_new() -> None:
    gpu = a_gpu(0)
    unknown = GpuMigView(gpu=gpu.uuid, state=MigState.DIRTY)
    for mode in (None, MigMode.DYNAMIC):
        offered = offer(gpu, unknown, mode)
        assert (names(offered), taints(offered)) == (["gpu-0"], {("draco.dev/unsettled", "Dirty")})


def test_dynamic_offers_the_whole_and_every_partition() -> None:
    offered = offer(a_gpu(0), a_mig(a_gpu(0)), MigMode.DYNAMIC)
    assert len(offered.devices) == 1 + len(H100.placements)
    assert [one.name for one in offered.counters] == ["gpu-0-counter-set"]


def test_before_hopper_a_gpu_is_offered_as_the_mode_it_is_in() -> None:
    off, on = a_mig(ampere(0)), a_mig(ampere(0), enabled=True)
    assert names(offer(ampere(0), off, MigMode.DYNAMIC)) == ["gpu-0"]
    assert offer(ampere(0), off, MigMode.DYNAMIC).counters == []
    assert len(names(offer(ampere(0), on, MigMode.DYNAMIC))) == len(H100.placements)
    assert names(offer(ampere(0), off, MigMode.STATIC, layout=LAYOUT)) == ["gpu-0"]
    assert taints(offer(ampere(0), on)) == {("draco.dev/unsettled", "MigMode")}


RESET = ("draco.dev/unsettled", "NeedsReset")


@pytest.mark.parametrize("mode", [MigMode.STATIC, MigMode.DYNAMIC])
def test_what_is_to_be_reset_now_takes_nothing_new_until_it_was(mode: MigMode) -> None:
    """Otherwise the next claim would take the GPU as soon as the awaited one has left it."""
    off, on = (msgspec.structs.replace(a_mig(ampere(0), enabled=mig), capable=True) for mig in (False, True))
    fields: dict[str, Any] = {"layout": LAYOUT} if mode is MigMode.STATIC else {}
    assert taints(offer(ampere(0), off, mode, reset_permitted=True, **fields)) == {RESET}
    assert taints(offer(ampere(0), on, mode, reset_permitted=True, **fields)) == set()
    assert taints(offer(ampere(0), off, mode, **fields)) == set(), "its window has not opened"
    assert taints(offer(ampere(0), off)) == set(), "no policy wants it any more"
    hopper = a_gpu(0)
    assert taints(offer(hopper, a_mig(hopper), mode, reset_permitted=True, **fields)) == set()
    incapable = GpuMigView(gpu=off.gpu)
    assert taints(offer(ampere(0), incapable, mode, reset_permitted=True, **fields)) == set()


def test_partitions_beside_a_gpu_that_is_to_be_reset_take_nothing_new_either() -> None:
    mig = msgspec.structs.replace(a_mig(ampere(0), ("1g.10gb", 2, Use.CLAIM)), capable=True)
    offered = offer(ampere(0), mig, MigMode.DISABLED, reset_permitted=True)
    assert names(offered) == ["gpu-0", "gpu-0-mig-1g10gb-19-2"]
    assert [[(one.key, one.value) for one in device.taints] for device in offered.devices] == [[RESET], [RESET]]
    assert taints(offer(ampere(0), mig, MigMode.DISABLED)) == {("draco.dev/unsettled", "MigMode")}


def test_a_whole_gpu_in_mig_mode_that_only_a_reset_ends_attracts_nobody_while_it_is_withdrawn() -> None:
    """It was offered divided, then its policy went and a person turned the mode on."""
    offering, gpu = Offering(), ampere(0)
    off, on = (msgspec.structs.replace(a_mig(gpu, enabled=mig), capable=True) for mig in (False, True))
    assert taints(offer(gpu, off, MigMode.DYNAMIC, offering=offering)) == set()
    withdrawn = offer(gpu, on, offering=offering)
    whole = next(device for device in withdrawn.devices if device.name == "gpu-0")
    assert [(one.key, one.value) for one in whole.taints] == [("draco.dev/unsettled", "MigMode")]


def test_static_offers_the_layout_and_nothing_else() -> None:
    offered = offer(a_gpu(0), a_mig(a_gpu(0)), MigMode.STATIC, layout=LAYOUT)
    assert sorted(names(offered)) == ["gpu-0-mig-3g40gb-9-4", "gpu-0-mig-4g40gb-5-0"]


def test_what_a_claim_holds_stays_published_when_the_policy_changes() -> None:
    gpu = a_gpu(0)
    mig = a_mig(gpu, ("1g.10gb", 2, Use.CLAIM))
    beside = "gpu-0-mig-1g10gb-19-2"
    assert names(offer(gpu, mig)) == ["gpu-0", beside]
    assert names(offer(gpu, mig, MigMode.DISABLED)) == ["gpu-0", beside]
    assert beside in names(offer(gpu, mig, MigMode.STATIC, layout=LAYOUT))
    assert beside in names(offer(gpu, mig, MigMode.DYNAMIC, profiles=["7g.80gb"]))
    assert len(offer(gpu, mig).counters) == 1


def test_a_gpu_whose_board_is_not_known_takes_nothing_new_while_a_claim_has_a_part_of_it() -> None:
    gpu = a_gpu(0)
    unknown = GpuMigView(gpu=gpu.uuid)
    for mig in (None, unknown):
        offered = offer(gpu, mig, promised=[a_promise(gpu, "1g.10gb", 2)])
        assert (names(offered), taints(offered)) == (["gpu-0"], {("draco.dev/unsettled", "Dirty")})
        assert taints(offer(gpu, mig, promised=[a_promise(gpu)])) == set()


def a_promise(gpu: Gpu, name: str = "", start: int = 0) -> PromisedDevice:
    profile = H100.profile(name)
    device = partition_name("gpu-0", Placement(profile, start)) if profile else "gpu-0"
    return PromisedDevice(device=device, uuid=gpu.uuid, claim="default/soon")


def test_what_a_claim_was_allocated_stays_published_before_there_is_an_instance() -> None:
    gpu = a_gpu(0)
    promised = [a_promise(gpu, "1g.10gb", 2)]
    for mode in (None, MigMode.DISABLED):
        for mig in (a_mig(gpu), a_mig(gpu, ("1g.10gb", 2, Use.CLAIM)), a_mig(gpu, enabled=True)):
            offered = offer(gpu, mig, mode, promised=promised)
            assert names(offered) == ["gpu-0", "gpu-0-mig-1g10gb-19-2"]
            (all_of_it, part) = [one.consumes_counters[0] for one in offered.devices]
            assert all_of_it.counter_set == part.counter_set == offered.counters[0].name
            assert part.counters["memory-slice-2"] == all_of_it.counters["memory-slice-2"]
    static = offer(gpu, a_mig(gpu), MigMode.STATIC, layout=LAYOUT, promised=promised)
    assert len(static.devices) == 1 + len(LAYOUT)
    dynamic = offer(gpu, a_mig(gpu), MigMode.DYNAMIC, profiles=["7g.80gb"], promised=promised)
    assert names(dynamic) == ["gpu-0", "gpu-0-mig-1g10gb-19-2", "gpu-0-mig-7g80gb-0-0"]


def test_a_gpu_that_a_claim_was_allocated_whole_stays_published_beside_its_parts() -> None:
    gpu = a_gpu(0)
    static = offer(gpu, a_mig(gpu), MigMode.STATIC, layout=LAYOUT, promised=[a_promise(gpu)])
    assert names(static)[0] == "gpu-0"
    assert len(static.devices) == 1 + len(LAYOUT)
    assert {one.consumes_counters[0].counter_set for one in static.devices} == {"gpu-0-counter-set"}
    on = a_mig(ampere(0), enabled=True)
    assert "gpu-0" in names(offer(ampere(0), on, MigMode.DYNAMIC, promised=[a_promise(ampere(0))]))


def test_of_promises_only_what_the_board_has_is_offered() -> None:
    gpu = a_gpu(0)
    promised = [a_promise(gpu, "3g.40gb", 1), a_promise(gpu, "9g.1tb", 0)]
    assert names(offer(gpu, a_mig(gpu), promised=promised)) == ["gpu-0"]


def test_a_gpu_with_a_foreign_instance_is_not_to_be_had_whole() -> None:
    gpu = a_gpu(0)
    assert taints(offer(gpu, a_mig(gpu, ("1g.10gb", 2, Use.FOREIGN)))) == {("draco.dev/foreign-instance", "")}


def test_without_counters_nothing_is_offered_that_excludes_another() -> None:
    gpu = a_gpu(0)
    assert names(offer(gpu, a_mig(gpu), MigMode.DYNAMIC, partitionable=False)) == ["gpu-0"]
    static = offer(gpu, a_mig(gpu), MigMode.STATIC, partitionable=False, layout=LAYOUT)
    assert len(static.devices) == 2
    assert (static.counters, [one.consumes_counters for one in static.devices]) == ([], [[], []])


def test_without_counters_what_a_claim_has_keeps_what_overlaps_from_being_offered() -> None:
    gpu = a_gpu(0)
    small, all_of_it = a_promise(gpu, "1g.10gb", 2), a_promise(gpu)
    on, off = a_mig(gpu, enabled=True), a_mig(gpu)
    fields: dict[str, Any] = {"partitionable": False}
    assert names(offer(gpu, on, promised=[small], **fields)) == ["gpu-0-mig-1g10gb-19-2"]
    assert names(offer(gpu, a_mig(gpu, ("1g.10gb", 2, Use.CLAIM)), **fields)) == ["gpu-0-mig-1g10gb-19-2"]
    static = offer(gpu, on, MigMode.STATIC, layout=LAYOUT, promised=[small], **fields)
    assert sorted(names(static)) == ["gpu-0-mig-1g10gb-19-2", "gpu-0-mig-3g40gb-9-4"]
    assert names(offer(gpu, off, MigMode.STATIC, layout=LAYOUT, promised=[all_of_it], **fields)) == ["gpu-0"]


def test_a_better_order_waits_for_its_turn_and_other_devices_do_not() -> None:
    first, second = a_gpu(0), a_gpu(1)
    gpus = [first, second]
    wanted = {one.uuid: WantedGpu(uuid=one.uuid, policy="p", mode=MigMode.DYNAMIC) for one in gpus}
    idle = {one.uuid: a_mig(one) for one in gpus}
    begun = idle | {second.uuid: a_mig(second, ("1g.10gb", 6, Use.CLAIM))}
    offering = Offering(pace_s=2.0)

    def at(now_s: float, migs: dict[Any, GpuMigView], count: int = 2) -> DeviceOffer:
        return offering.offer(gpus[:count], DRIVER, migs=migs, wanted=wanted, now_s=now_s)

    before = at(10.0, idle)
    waiting = at(11.5, begun)
    assert (names(waiting), waiting.again_in_s) == (names(before), 0.5)
    after = at(12.0, begun)
    assert names(after) != names(before)
    assert after.again_in_s is None
    assert next(name for name in names(after) if "-19-" in name) == "gpu-1-mig-1g10gb-19-5"
    assert len(at(12.1, idle, count=1).devices) == len(before.devices) / 2
    assert len(at(12.2, idle).devices) == len(before.devices)
    offering = Offering(pace_s=2.0)
    at(20.0, idle, count=1)
    assert len(at(20.5, idle).devices) == len(before.devices)


def test_gpus_are_offered_in_the_order_of_their_minor_numbers() -> None:
    gpus = [a_gpu(minor) for minor in (2, 0, 1)]
    offered = Offering().offer(gpus, DRIVER, migs={}, wanted={}, now_s=0.0)
    assert names(offered) == ["gpu-0", "gpu-1", "gpu-2"]


@pytest.mark.parametrize("use", [Use.WARM, Use.LAYOUT, Use.ORPHAN, Use.FOREIGN])
def test_what_no_claim_holds_is_not_offered_without_a_policy(use: Use) -> None:
    gpu = a_gpu(0)
    assert names(offer(gpu, a_mig(gpu, ("1g.10gb", 0, use)))) == ["gpu-0"]


def test_of_a_layout_only_what_the_board_has_is_offered() -> None:
    """The layout may have been chosen for the board that was there before."""
    gpu = a_gpu(0)
    layout = [*LAYOUT, WantedInstance(profile="3g.40gb", start=1), WantedInstance(profile="9g.1tb", start=0)]
    offered = offer(gpu, a_mig(gpu, enabled=True), MigMode.STATIC, layout=layout)
    assert names(offered) == names(offer(gpu, a_mig(gpu, enabled=True), MigMode.STATIC, layout=LAYOUT))


def test_a_gpu_with_a_fault_stays_published_whole_and_in_parts_and_all_of_it_is_tainted() -> None:
    sick = with_fault(a_gpu(0), "Xid79", "It has fallen off the bus.")
    for mig, mode, count in (
        (None, None, 1),
        (a_mig(sick), MigMode.DYNAMIC, 1 + len(H100.placements)),
        (a_mig(sick, ("1g.10gb", 0, Use.CLAIM), ("1g.10gb", 1, Use.FOREIGN)), MigMode.STATIC, 3),
    ):
        offered = offer(sick, mig, mode, layout=LAYOUT)
        assert len(offered.devices) == count
        for one in offered.devices:
            assert [taint.effect for taint in one.taints if (taint.key, taint.value) == ("draco.dev/xid", "Xid79")] == [
                "NoSchedule"
            ], one.name


def under_maintenance(uuid: str, device: str = "", **taint: str) -> IsolatedGpu:
    said = {"key": "draco.dev/maintenance", "effect": "NoSchedule", **taint}
    return IsolatedGpu(request="swap-fan", uuid=uuid, device=device, **said)


def offered_under(isolated: Sequence[IsolatedGpu], mode: MigMode | None) -> set[str]:
    """The devices of two GPUs that carry the maintenance taint."""
    gpus = [a_gpu(number) for number in range(2)]
    wanted = {each.uuid: WantedGpu(uuid=each.uuid, policy="p", mode=mode) for each in gpus} if mode else {}
    migs = {each.uuid: a_mig(each) for each in gpus}
    offered = Offering().offer(gpus, DRIVER, migs=migs, wanted=wanted, isolated=isolated, now_s=0.0)
    return {one.name for one in offered.devices if any(each.key == "draco.dev/maintenance" for each in one.taints)}


def test_a_gpu_under_maintenance_is_offered_with_the_taint_whole_or_in_parts() -> None:
    isolated = [under_maintenance(a_gpu(0).uuid, "gpu-7")]  # by its UUID, whatever its name was
    assert offered_under(isolated, None) == {"gpu-0"}
    parts = offered_under(isolated, MigMode.DYNAMIC)
    assert len(parts) == 1 + len(H100.placements)
    assert all(name.startswith("gpu-0") for name in parts)
    assert offered_under([], MigMode.DYNAMIC) == set()


def test_a_node_under_maintenance_offers_nothing_without_the_taint() -> None:
    assert offered_under([under_maintenance("")], None) == {"gpu-0", "gpu-1"}


@pytest.mark.parametrize("part", ["gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-me-20-3", "gpu-0-mig-3g40gb-9-4"])
def test_of_a_part_under_maintenance_exactly_what_overlaps_it_has_the_taint(part: str) -> None:
    gpu = a_gpu(0)
    wanted = {gpu.uuid: WantedGpu(uuid=gpu.uuid, policy="p", mode=MigMode.DYNAMIC)}
    offered = Offering().offer([gpu], DRIVER, migs={gpu.uuid: a_mig(gpu)}, wanted=wanted, now_s=0.0)
    counters = a_slice("node-1", [], name="a", of=2, shared_counters=offered.counters)
    hardware = PoolHardware([counters, a_slice("node-1", offered.devices, name="b", of=2)])
    assert hardware.published_as(part) is not None
    isolated = [under_maintenance(gpu.uuid, part)]
    assert offered_under(isolated, MigMode.DYNAMIC) == {part, *hardware.overlapping(part)}


def test_two_requests_with_one_taint_make_one() -> None:
    gpu = with_fault(a_gpu(0), "Lost", "It is gone.")
    uuid = gpu.uuid
    isolated = [under_maintenance(uuid), under_maintenance(""), *(under_maintenance(uuid, value=v) for v in "abcdef")]
    offered = Offering().offer([gpu], DRIVER, migs={}, wanted={}, isolated=isolated, now_s=0.0)
    told = [(each.key, each.value) for each in offered.devices[0].taints]
    assert told == [("draco.dev/maintenance", value) for value in ("", "a", "b", "c")]


class Lab:
    """The offers of a node with one GPU, and what its publisher was given."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.recovered, self.recalled, self.known = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.slicing_known = asyncio.Event()
        self.slicing_known.set()
        self.told: list[list[str]] = []
        self.offered: list[Device] = []
        self.published: list[Device] = []

        async def before() -> list[Device]:
            return self.published

        def want(devices: Sequence[Device], _counters: object) -> None:
            self.told.append([one.name for one in devices])
            self.offered = list(devices)

        publisher: Any = SimpleNamespace(want=want, before=before, is_written=True, generation=1)
        keeper: Any = SimpleNamespace(recalled=self.recalled, known=self.known)
        divisions: Any = SimpleNamespace(of=lambda _gpus, _divisions: {})
        self.state = state = NodeState(ManualClock())
        state.learn(view=HardwareView(driver=DRIVER, gpus=(a_gpu(0),)))
        self.claims: dict[ClaimUid, PreparedClaim] = {}
        self.offers = Offers(
            state,
            publisher,
            keeper,
            divisions,
            claims=lambda: self.claims,
            slicing_known=self.slicing_known,
            clock=self.clock,
        )

    @asynccontextmanager
    async def running(self, *, follows: bool = True) -> AsyncIterator[None]:
        run = self.offers.run(recovered=self.recovered, follows=follows)
        task = asyncio.create_task(run)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def lab() -> Lab:
    return Lab()


async def test_nothing_is_offered_before_it_is_known_whose_instances_there_are_and_what_is_wanted(lab: Lab) -> None:
    async with lab.running():
        lab.offers.touch()
        await settle()
        assert lab.told == []
        lab.recovered.set()
        await lab.clock.advance(10 * PATIENCE_S)
        assert lab.told == []
        lab.recalled.set()
        await settle()
        assert lab.told == []
        lab.known.set()
        await settle()
        assert lab.told == [["gpu-0"]]


async def test_the_first_offer_waits_a_moment_for_what_gpus_can_do(lab: Lab) -> None:
    lab.slicing_known.clear()
    async with lab.running(follows=False):
        lab.recovered.set()
        lab.recalled.set()
        await lab.clock.advance(TRIED_S - 1)
        assert lab.told == []
        await lab.clock.advance(2)
        await settle()
        assert lab.told == [["gpu-0"]]


async def test_a_cluster_without_gpunodes_is_not_asked_what_is_wanted(lab: Lab) -> None:
    async with lab.running(follows=False):
        lab.recovered.set()
        lab.recalled.set()
        await settle()
        assert lab.told == [["gpu-0"]]


async def test_wishes_that_cannot_be_read_do_not_keep_whole_gpus_from_their_users_for_ever(lab: Lab) -> None:
    with capture_logs() as logs:
        async with lab.running():
            lab.recovered.set()
            lab.recalled.set()
            await settle()
            await lab.clock.advance(PATIENCE_S - 1)
            assert lab.told == []
            await lab.clock.advance(2)
            await settle()
            assert lab.told == [["gpu-0"]]
    (said,) = [each for each in logs if each["event"] == "offers.wishes_unknown"]
    assert "gpunodes.draco.dev" in said["remedy"]


def test_a_gpu_that_joins_its_fabric_is_not_to_be_had_as_a_whole_and_its_partitions_are() -> None:
    gpu = a_gpu(0, joining=True)
    assert taints(offer(gpu, a_mig(gpu))) == {("draco.dev/unsettled", "FabricJoining")}
    offered = offer(gpu, a_mig(gpu), MigMode.DYNAMIC)
    assert [one.name for one in offered.devices if one.taints] == ["gpu-0"]


def test_a_gpu_of_an_unknown_generation_needs_a_reset_to_leave_mig_mode() -> None:
    gpu = a_gpu(0, compute_major=None, compute_minor=None)
    assert taints(offer(gpu, a_mig(gpu, enabled=True))) == {("draco.dev/unsettled", "MigMode")}


async def test_a_gpu_that_a_previous_agent_has_published_for_one_claim_is_not_shared_without_notice(lab: Lab) -> None:
    uuid = a_gpu(0).uuid
    lab.published = offer(a_gpu(0), None).devices
    lab.state.learn(wanted=WantedNode(shared={uuid: SharedGpu(uuid=uuid, policy="p", mode=SharingMode.MEMORY)}))
    for each in (lab.recovered, lab.recalled, lab.known):
        each.set()
    async with lab.running():
        await settle()
        (device,) = lab.offered
        assert not device.allow_multiple_allocations
        assert ("draco.dev/unsettled", "Withdrawn") in {(one.key, one.value) for one in device.taints}
        for cleared in ({}, {uuid: 1}):
            lab.state.learn(wanted=msgspec.structs.replace(lab.state.facts.wanted, cleared=cleared))
            lab.offers.touch()
            for _ in range(20):
                await lab.clock.advance(0.5)
                await settle()
            assert bool(lab.offered[0].allow_multiple_allocations) is bool(cleared)


def test_a_gpu_that_waits_to_be_shared_otherwise_takes_no_new_claims() -> None:
    gpu = a_gpu(0)
    offered = Offering().offer([gpu, a_gpu(1)], DRIVER, migs={}, wanted={}, changing=[gpu.uuid], now_s=0.0)
    assert [(one.name, [taint.value for taint in one.taints]) for one in offered.devices] == [
        ("gpu-0", ["Sharing"]),
        ("gpu-1", []),
    ]


async def test_a_gpu_keeps_the_form_in_which_claims_are_prepared_whatever_is_wanted(lab: Lab) -> None:
    """Somebody has removed the shares from the spec."""
    gpu = a_gpu(0)
    form = SharedGpu(uuid=gpu.uuid, policy="p", mode=SharingMode.MEMORY)
    lab.published = [as_shareable(one, terms_for(form, one)) for one in offer(gpu, None).devices]
    device = PreparedDevice(request="r", pool="node-0", device="gpu-0", gpu=gpu.uuid, minor=0, share_id="s")
    claim = PreparedClaim(uid=ClaimUid("1"), namespace="n", name="c", state=PreparationState.PREPARED, devices=[device])
    lab.claims = {claim.uid: claim}
    for each in (lab.recovered, lab.recalled, lab.known):
        each.set()
    async with lab.running():
        for _ in range(20):
            await lab.clock.advance(0.5)
            await settle()
        (kept,) = lab.offered
        assert kept.allow_multiple_allocations
        assert ("draco.dev/unsettled", "Sharing") in {(one.key, one.value) for one in kept.taints}
        del lab.claims[claim.uid]
        lab.offers.claim_settled(ClaimSettled(claim))
        lab.state.learn(wanted=WantedNode(cleared={gpu.uuid: 1}))
        for _ in range(20):
            await lab.clock.advance(0.5)
            await settle()
        assert not lab.offered[0].allow_multiple_allocations
        assert lab.offered[0].taints == []


def test_a_claim_that_has_a_gpu_alone_keeps_it_from_being_shared() -> None:
    gpu = a_gpu(0)
    wanted = {gpu.uuid: SharedGpu(uuid=gpu.uuid, policy="p", mode=SharingMode.MEMORY)}
    device = PreparedDevice(request="r", pool="node-0", device="gpu-0", gpu=gpu.uuid, minor=0)
    claim = PreparedClaim(uid=ClaimUid("1"), namespace="n", name="c", state=PreparationState.PREPARED, devices=[device])
    assert held_forms(wanted, {gpu.uuid: None}, [claim]) == {}
    assert held_forms(wanted, {gpu.uuid: None}, []) == wanted
    watching = msgspec.structs.replace(claim, devices=[msgspec.structs.replace(device, admin=True)])
    assert held_forms(wanted, {gpu.uuid: None}, [watching]) == wanted
    assert held_forms(wanted, wanted, [claim]) == wanted
