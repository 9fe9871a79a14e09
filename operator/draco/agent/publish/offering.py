"""Which devices this node offers: whole GPUs, partitions, or both, and when their order is published again.

`Offering` owns the effect of a GPU's mode on what is published, and the pace of publishing. It holds the published order and
nothing else; reads nothing, writes nothing. `Offers` passes the offer to the publisher when it may have changed. Nothing is
offered before owners of instances and wanted layouts are known: a starting agent would withdraw partitions and publish them again
a second later. Devices that a claim holds, or has been allocated, stay published whatever is wanted now: the scheduler counts
used units by the devices in the slices, so dropping one too early would free its counters.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import structlog

from draco.agent.claims.memory_limits import PublishedShares
from draco.agent.hardware.gpus import DriverInfo, Gpu, GpuMigView, Use, device_name, position
from draco.agent.mig.keeper import MigKeeper
from draco.agent.publish import partitions, slices
from draco.agent.publish.forms import as_shared, can_have, held_forms
from draco.agent.publish.known_divisions import KnownDivisions
from draco.agent.publish.nvlink import nvlinks
from draco.agent.publish.partitions import Divisible, Place
from draco.agent.publish.publisher import SlicePublisher
from draco.agent.publish.taints import as_many_as_fit, isolation_taints, joining_taints, kept_from_scheduler, tainted
from draco.agent.publish.withdrawals import Withdrawals
from draco.agent.record.contents import PreparedClaim
from draco.agent.state.changes import ClaimSettled
from draco.agent.state.facts import NodeFacts
from draco.agent.state.node import NodeState
from draco.allocation.share_limits import ShareRoom
from draco.health import judgement
from draco.kube.clock import Clock, wait_for
from draco.kube.queue import WorkQueue, run_workers
from draco.mig.board import Board, Placement
from draco.mig.keeping import KeptInstances, keeping, layout_of
from draco.resources.api.draco import GpuSharing, IsolatedGpu, MigMode, MigState, PromisedDevice, WantedGpu
from draco.resources.api.sharing import SharedGpu
from draco.resources.api.slices import CounterSet, Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import (
    ATTRIBUTE_MPS,
    ATTRIBUTE_TIME_SLICING,
    TAINT_DEVICE_PLUGIN,
    TAINT_FOREIGN_INSTANCE,
    TAINT_UNSETTLED,
    UNSETTLED_MIG_MODE,
    UNSETTLED_SHARING,
    UNSETTLED_WITHDRAWN,
    ClaimUid,
    GpuUuid,
    gpu_name,
)
from draco.sharing.terms import alike, least_share, published_forms, published_memory

PACE_S = 2.0
"""Minimum time between publications that differ only in their order. A stale order is legal, only worse."""


_UNCLEARED: Mapping[GpuUuid, int] = MappingProxyType({})
_UNSHARED: Mapping[GpuUuid, SharedGpu] = MappingProxyType({})
_NOTHING: Mapping[GpuUuid, Sequence[PromisedDevice]] = MappingProxyType({})


class DeviceOffer(msgspec.Struct, frozen=True):
    """What to publish. `again_in_s`: after that time something else is due; None if nothing is."""

    devices: list[Device]
    counters: list[CounterSet]
    again_in_s: float | None = None


class Offering:
    """Decides what one node publishes. `partitionable` says whether the cluster keeps the counters of partitions."""

    def __init__(self, *, partitionable: bool = True, pace_s: float = PACE_S) -> None:
        self.partitionable = partitionable
        self._pace_s = pace_s
        self._order: list[Place] = []
        self._ordered_at_s = float("-inf")
        self._withdrawals = Withdrawals()
        self.memory: Mapping[GpuUuid, int] = {}
        """The memory of GPUs in bytes, as last read or published."""

    def recall(self, forms: Mapping[GpuUuid, SharedGpu | None], memory: Mapping[GpuUuid, int]) -> None:
        """How GPUs are shared that have been published already, None for one claim alone, and with how much memory."""
        self._withdrawals.recall(forms)
        self.memory = memory

    @property
    def forms(self) -> Mapping[GpuUuid, SharedGpu | None]:
        """How published GPUs are shared."""
        return self._withdrawals.forms

    def offer(
        self,
        gpus: Sequence[Gpu],
        driver: DriverInfo,
        *,
        migs: Mapping[GpuUuid, GpuMigView],
        wanted: Mapping[GpuUuid, WantedGpu],
        promised: Mapping[GpuUuid, Sequence[PromisedDevice]] = _NOTHING,
        shared: Mapping[GpuUuid, SharedGpu] = _UNSHARED,
        changing: Collection[str] = (),
        isolated: Sequence[IsolatedGpu] = (),
        operator_allocated: Collection[str] = (),
        given_out: Callable[[bool], bool] = lambda _: False,
        sharing: Callable[[Gpu], GpuSharing] = lambda gpu: GpuSharing(memory_limit=gpu.memory_limit),
        written: bool = True,
        generation: int = 0,
        cleared: Mapping[GpuUuid, int] = _UNCLEARED,
        now_s: float,
    ) -> DeviceOffer:
        """What to publish now. `migs` and `wanted` are by UUID; a GPU without either is offered whole. `now_s` is monotonic.

        `promised` are allocated devices that would no longer be offered, `shared` the GPUs that several claims may have,
        `changing` those to be shared otherwise when they are free, `isolated` those under maintenance, `operator_allocated` those
        that Draco allocates. `given_out` says whether another allocator gives out divided GPUs, or undivided ones. `sharing` says
        how a GPU can be shared. `written` says whether the API server has the last offer, as the pool's `generation`; `cleared`
        has the generations at which the operator cleared GPUs for another form.
        """
        plain: list[Device] = []
        divisible: list[Divisible] = []
        going: set[str] = set()
        again: list[float] = []
        forms: dict[str, SharedGpu] = {}
        unsettled = {device_name(each) for each in gpus if each.uuid in changing}
        self._withdrawals.keep_only({each.uuid for each in gpus})
        self.memory = {
            **self.memory,
            **{each.uuid: each.memory_bytes for each in gpus if each.memory_bytes is not None},
        }
        for gpu in map(self._with_memory, sorted(gpus, key=position)):
            uuid = gpu.uuid
            mig = migs.get(uuid) or GpuMigView(gpu=uuid)
            of_claims = promised.get(uuid, ())
            asked = self._divisible(gpu, mig, wanted.get(uuid), keeping(None, mig.board, of_claims))
            form = shared.get(uuid)
            if form is not None and not can_have(sharing(gpu), slices.device(gpu, driver), form):
                form = self.forms.get(uuid)  # claims may hold it so; the operator decides
                unsettled |= {device_name(gpu)} if form is not None else set()
            offered = self._withdrawals.offer(
                gpu,
                mig,
                asked,
                form,
                written=written,
                generation=generation,
                cleared=cleared.get(uuid),
                now_s=now_s,
            )
            if offered.shared is not None:
                forms[device_name(gpu)] = offered.shared
            made = offered.divided
            going |= offered.going
            again += [offered.again_in_s] if offered.again_in_s is not None else []
            concerned = tuple(one for one in isolated if one.uuid in {"", uuid})
            resets = _is_to_be_reset(gpu, mig, wanted.get(uuid))
            if made is None:
                parted = any(gpu_name(each.device) != each.device for each in of_claims)
                plain.append(_whole(gpu, mig, driver, concerned, resets=resets, parted=parted))
            else:
                divisible.append(msgspec.structs.replace(made, isolated=concerned, resets=resets))
        again += [pause_s] if (pause_s := self._reorder(divisible, now_s)) is not None else []
        of_whole = {name: each.attributes() for name, each in nvlinks(gpus).items()}  # no partition reaches another GPU
        for gpu in gpus:
            said = sharing(gpu)
            for name, value in ((ATTRIBUTE_TIME_SLICING, said.time_slicing), (ATTRIBUTE_MPS, said.mps)):
                if value is not None:
                    of_whole.setdefault(device_name(gpu), {})[name] = DeviceAttribute(bool_=value)
        of_parts = {
            name: {ATTRIBUTE_MPS: found[ATTRIBUTE_MPS]} for name, found in of_whole.items() if ATTRIBUTE_MPS in found
        }
        devices = [
            msgspec.structs.replace(one, attributes=one.attributes | added)
            if (added := of_whole.get(one.name) or of_parts.get(gpu_name(one.name)))
            else one
            for one in plain + partitions.devices(divisible, driver, self._order)
        ]
        devices = [as_shared(one, forms.get(gpu_name(one.name))) for one in devices] if forms else devices
        if unsettled:
            devices = [
                tainted(one, TAINT_UNSETTLED, UNSETTLED_SHARING) if gpu_name(one.name) in unsettled else one
                for one in devices
            ]
        if operator_allocated:
            names = {device_name(each) for each in gpus if each.uuid in operator_allocated}
            devices = [kept_from_scheduler(one) if gpu_name(one.name) in names else one for one in devices]
        if both := {
            device_name(each)
            for each in gpus
            if given_out((found := migs.get(each.uuid)) is not None and found.enabled)
        }:
            devices = [tainted(one, TAINT_DEVICE_PLUGIN) if gpu_name(one.name) in both else one for one in devices]
        devices = [tainted(one, TAINT_UNSETTLED, UNSETTLED_WITHDRAWN) if one.name in going else one for one in devices]
        again_in_s = min(again, default=None)
        if not self.partitionable:
            return DeviceOffer([msgspec.structs.replace(one, consumes_counters=[]) for one in devices], [], again_in_s)
        return DeviceOffer(devices, partitions.counters(divisible), again_in_s)

    def _with_memory(self, gpu: Gpu) -> Gpu:
        """A shared GPU keeps its memory while it cannot be read: claims hold amounts of it."""
        if gpu.memory_bytes is not None or self.forms.get(gpu.uuid) is None:
            return gpu
        return msgspec.structs.replace(gpu, memory_bytes=self.memory.get(gpu.uuid))

    def _reorder(self, gpus: Sequence[Divisible], now_s: float) -> float | None:
        """Adopt the best order if it differs in a way that counts and the pace permits; returns seconds to wait, or None."""
        fresh = partitions.better(self._order, gpus)
        if fresh is None:
            return None
        wait_s = self._ordered_at_s + self._pace_s - now_s
        if wait_s > 0 and set(fresh) == set(self._order):
            return wait_s
        self._order, self._ordered_at_s = fresh, now_s
        return None

    def _divisible(self, gpu: Gpu, mig: GpuMigView, wanted: WantedGpu | None, keep: KeptInstances) -> Divisible | None:
        """The GPU with its partitions to offer; None if it is offered whole, as if there were no MIG."""
        board = mig.board
        if board is None:
            return None
        beside = tuple(dict.fromkeys((*_claimed(mig, board), *(one.placement for one in keep.promised.values()))))
        switchable = not gpu.mig_needs_reset
        common: dict[str, Any] = {"gpu": gpu, "mig": mig, "board": board, "beside": beside}
        if wanted is not None and (mig.enabled or switchable):
            if wanted.mode is MigMode.DYNAMIC and self.partitionable:
                whole = switchable or not mig.enabled or bool(keep.whole)
                return Divisible(**common, profiles=frozenset(wanted.profiles), whole=whole)
            if wanted.mode is MigMode.STATIC:
                return self._static(common, layout_of(wanted, board), keep)
        return Divisible(**common, layout=(), whole=self.partitionable) if beside else None

    def _static(self, common: dict[str, Any], layout: tuple[Placement, ...], keep: KeptInstances) -> Divisible | None:
        if self.partitionable:
            return Divisible(**common, layout=layout, whole=bool(keep.whole))
        # Without counters nothing keeps the scheduler from overlapping devices, so they must not be published.
        kept = common["beside"]
        free = (one for one in layout if one in kept or not any(one.mask & other.mask for other in kept))
        return None if keep.whole else Divisible(**common, layout=tuple(free), whole=False)


def _claimed(mig: GpuMigView, board: Board) -> tuple[Placement, ...]:
    """Placements of claims' instances, and of lost ones: those are the claims' until they are unprepared."""
    held = [one.instance.key for one in mig.held if one.use is Use.CLAIM]
    return tuple(
        Placement(profile, key.start)
        for key in (*held, *mig.missing)
        if (profile := board.by_id(key.profile_id)) is not None
    )


def _is_to_be_reset(gpu: Gpu, mig: GpuMigView, wanted: WantedGpu | None) -> bool:
    """Whether a reset is wanted for the MIG mode and permitted: it waits until work ends, and no new work may begin."""
    if wanted is None or not (wanted.reset_permitted and mig.capable and gpu.mig_needs_reset):
        return False
    return mig.enabled is (wanted.mode is MigMode.DISABLED)


def _whole(
    gpu: Gpu,
    mig: GpuMigView,
    driver: DriverInfo,
    isolated: Sequence[IsolatedGpu],
    *,
    resets: bool,
    parted: bool,
) -> Device:
    """An undivided GPU, tainted if it is not available as such now. `parted`: claims have parts of it."""
    taints = isolation_taints(isolated) + judgement.taints(gpu.faults)
    if mig.foreign:
        taints.append(DeviceTaint(key=TAINT_FOREIGN_INSTANCE, effect="NoSchedule"))
    if mig.board is None and (mig.state is MigState.DIRTY or parted):  # what exists of it is unknown
        taints.append(DeviceTaint(key=TAINT_UNSETTLED, value=MigState.DIRTY.value, effect="NoSchedule"))
    taints += joining_taints(gpu)
    if mig.enabled and gpu.mig_needs_reset:
        taints.append(DeviceTaint(key=TAINT_UNSETTLED, value=UNSETTLED_MIG_MODE, effect="NoSchedule"))
    elif resets:
        taints.append(DeviceTaint(key=TAINT_UNSETTLED, value=MigState.NEEDS_RESET.value, effect="NoSchedule"))
    return msgspec.structs.replace(slices.device(gpu, driver), taints=as_many_as_fit(taints))


log = structlog.get_logger()

TRIED_S = 5.0
"""How long the first offer waits until it is known which GPUs can have time slices: seconds on a new node, else nothing."""
PATIENCE_S = 30.0
"""How long to wait for an unreadable GpuNode; after that, GPUs are offered by what was wanted last."""


class Offers:
    """Keeps the publisher up to date. Call `touch` when something relevant may have changed."""

    def __init__(
        self,
        state: NodeState,
        publisher: SlicePublisher,
        keeper: MigKeeper,
        divisions: KnownDivisions,
        *,
        claims: Callable[[], Mapping[ClaimUid, PreparedClaim]],
        slicing_known: asyncio.Event,
        clock: Clock,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._state = state
        self._publisher = publisher
        self._keeper = keeper
        self._divisions = divisions
        self._claims = claims
        self._forms: Mapping[GpuUuid, SharedGpu | None] = {}
        self._kept: frozenset[GpuUuid] = frozenset()  # GPUs in the form in which claims are prepared
        self._slicing_known = slicing_known
        self._clock = clock
        self._patience_s = patience_s
        self._queue: WorkQueue[str] = WorkQueue(clock=clock, base_s=0.5, cap_s=30.0)
        self._offering = Offering()

    def touch(self, _change: object = None) -> None:
        """Compute the offer again."""
        self._queue.add("")

    def claim_settled(self, change: ClaimSettled) -> None:
        """A claim was prepared or unprepared: a GPU may be free to be shared otherwise."""
        if any(device.gpu in self._kept for device in change.claim.devices):
            self.touch()

    def shares(self, gpu: GpuUuid) -> PublishedShares | None:
        """What holds the published shares of a GPU to their memory; None if it has none, or that is unknown. In any thread."""
        form = self._forms.get(gpu)
        if form is None:
            return None
        least = least_share(form)
        return PublishedShares(form.enforcement, ShareRoom(self._offering.memory.get(gpu, 0), least, least))

    def features_seen(self, facts: NodeFacts) -> None:
        """The cluster now keeps, or does not keep, the counters of partitions."""
        kept = facts.features is None or facts.features.partitionable_devices is not False
        if kept is not self._offering.partitionable:
            before = self._offering
            self._offering = Offering(partitionable=kept)  # earlier offers mean nothing now
            self._offering.recall(before.forms, before.memory)
        self.touch()

    async def run(self, *, recovered: asyncio.Event, follows: bool) -> None:
        """Offer until cancelled, from `recovered` on. `follows`: GpuNodes are served, so what is wanted will become known."""
        before = await self._publisher.before()
        self._offering.recall(published_forms(before), published_memory(before))
        self._forms = self._offering.forms  # a claim may wait for its share
        await recovered.wait()
        await self._keeper.recalled.wait()
        if follows:
            await wait_for(self._keeper.known, self._clock, self._patience_s)
            if not self._keeper.known.is_set():
                log.warning(
                    "offers.wishes_unknown", remedy="give the agent the right to list and watch gpunodes.draco.dev"
                )
        await wait_for(self._slicing_known, self._clock, TRIED_S)  # else it is published twice
        self.touch()
        await run_workers(self._queue, self._reconcile, workers=1, log=log)

    async def _reconcile(self, _: str) -> float | None:
        facts = self._state.facts
        view, wanted, others = facts.view, facts.wanted, facts.device_plugins
        if view.driver is None:
            return None
        cleared = wanted.cleared
        if facts.features is not None and facts.features.device_taints is False:
            # Nobody sees a taint, so none is waited for.
            cleared = {each.uuid: self._publisher.generation for each in view.gpus}
        shared = held_forms(wanted.shared, self._offering.forms, self._claims().values())
        self._kept = frozenset(
            uuid
            for uuid in shared.keys() | wanted.shared.keys()
            if not alike(shared.get(uuid), wanted.shared.get(uuid))
        )
        offer = self._offering.offer(
            view.gpus,
            view.driver,
            migs=self._divisions.of(view.gpus, facts.divisions),
            wanted=wanted.gpus or {},
            promised=wanted.promised,
            shared=shared,
            changing={*wanted.changing, *self._kept},
            isolated=wanted.isolated,
            operator_allocated=wanted.operator_allocated,
            given_out=lambda divided: others is not None and others.gives(divided=divided),
            sharing=facts.sharing,
            written=self._publisher.is_written,
            generation=self._publisher.generation,
            cleared=cleared,
            now_s=self._clock.monotonic(),
        )
        self._forms = self._offering.forms
        self._publisher.want(offer.devices, offer.counters)
        return offer.again_in_s
