"""The facts known of one node at one moment, as values, and their sentences. Each is filled by the part that learns it."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import msgspec

from draco.agent.hardware.gpus import Gpu, GpuMigView, PlacementKey
from draco.agent.hardware.monitor import HardwareView
from draco.agent.record.contents import PreparedClaim
from draco.kube.discovery import Features
from draco.resources.api.draco import GpuNodeSpec, GpuSharing, IsolatedGpu, PromisedDevice, RepairedGpu, WantedGpu
from draco.resources.api.health import FaultOverride
from draco.resources.api.sharing import SharedGpu
from draco.resources.names import ClaimUid, GpuUuid
from draco.resources.texts import listed

UNWRITTEN = "The slices have not been written yet."


class PublishedPool(msgspec.Struct, frozen=True):
    """What the API server has from us: the pool's generation and device count; None if nothing, or nothing now."""

    generation: int
    devices: int


class PluginConflict(msgspec.Struct, frozen=True):
    """Another plugin serves the driver, or somebody has our sockets. `gives_way`: we must yield."""

    sentence: str
    gives_way: bool = False


class OtherAllocator(msgspec.Struct, frozen=True):
    """What device plugins give out on this node, and the sockets of plugins of which nothing else is known yet."""

    resources: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.resources or self.sockets)

    def gives(self, *, divided: bool) -> bool:
        """Whether it may give out a GPU, `divided` or not.

        MIG devices are counted by profile, or as GPUs if no others exist; an undivided GPU is never counted by profile.
        """
        return bool(self) and (divided or not self.resources or any("/mig-" not in each for each in self.resources))

    def __str__(self) -> str:
        if not self:
            return ""
        what = f"gives out {listed(self.resources)}" if self.resources else f"listens on {listed(self.sockets)}"
        return (
            f"A device plugin {what} on this node. It and Draco could give the same GPU to two pods, so claims get no device "
            "that both give out. Remove the device plugin from the node, or Draco's agent."
        )


class TimeSlicing(msgspec.Struct, frozen=True):
    """Whether a GPU's time slice can be set, None if unknown; and why it could not be set, to follow the GPU's name."""

    supported: bool | None = None
    problem: str = ""


class GpuMps(msgspec.Struct, frozen=True):
    """Whether claims can have MPS on a GPU, None if unknown; and what is wrong with it, to follow the GPU's name.

    `parts` are the problems of single MIG devices, of which `problem` names the first. `protocol`: the newest that the installed
    control program knows, 0 while unknown.
    """

    supported: bool | None = None
    problem: str = ""
    parts: Mapping[PlacementKey, str] = {}
    protocol: int = 0

    def problem_of(self, part: PlacementKey | None) -> str:
        """What is wrong with a MIG device, or with the whole GPU."""
        return self.problem if part is None else self.parts.get(part, "")


class LimitLibraryState(msgspec.Struct, frozen=True):
    """Whether containers can have the library that limits memory, None if unknown; and why not, "" if none is named."""

    usable: bool | None = None
    problem: str = ""


class Leftover(msgspec.Struct, frozen=True):
    """A claim that nothing can use any more: `why`, and what keeps it from being unprepared ("" for nothing)."""

    claim: PreparedClaim
    why: str
    hindrance: str = ""

    def __str__(self) -> str:
        return f"C{self.clause[1:]}"

    @property
    def clause(self) -> str:
        """Its sentence as a clause after a semicolon."""
        then = f"it stays prepared while {self.hindrance}" if self.hindrance else "the agent will unprepare it soon"
        return f"claim {self.claim} is {self.why}; {then}."


class WantedNode(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of one node's GPUs, by UUID.

    `gpus` is None while unknown. `promised`: what else claims were allocated. `forgotten`: GPUs that a person calls gone.
    `as_published`: derived from slices, so nothing is created or destroyed for it. `generation`: the GpuNode's, or 0.
    """

    gpus: Mapping[GpuUuid, WantedGpu] | None = None
    promised: Mapping[GpuUuid, Sequence[PromisedDevice]] = {}
    shared: Mapping[GpuUuid, SharedGpu] = {}
    changing: Sequence[str] = []
    cleared: Mapping[GpuUuid, int] = {}
    isolated: Sequence[IsolatedGpu] = []
    operator_allocated: Sequence[str] = []
    health: Sequence[FaultOverride] = []
    repaired: Sequence[RepairedGpu] = []
    forgotten: frozenset[GpuUuid] = frozenset()
    as_published: bool = False
    generation: int = 0

    @classmethod
    def of(
        cls, spec: GpuNodeSpec, *, as_published: bool, generation: int, forgotten: frozenset[GpuUuid]
    ) -> "WantedNode":
        """What a spec says, by GPU."""
        promised: dict[GpuUuid, list[PromisedDevice]] = {}
        for each in spec.promised:
            promised.setdefault(GpuUuid(each.uuid), []).append(each)
        return cls(
            gpus={GpuUuid(each.uuid): each for each in spec.gpus},
            promised=promised,
            shared={GpuUuid(each.uuid): each for each in spec.shared},
            changing=spec.changing,
            cleared={GpuUuid(each.uuid): each.generation for each in spec.cleared},
            isolated=spec.isolated,
            operator_allocated=spec.operator_allocated,
            health=spec.health,
            repaired=spec.repaired,
            forgotten=forgotten,
            as_published=as_published,
            generation=generation,
        )

    def asks_the_same_of(self, uuid: GpuUuid, before: "WantedNode") -> bool:
        """Whether the spec and allocations of a GPU are unchanged."""
        gpus, earlier = self.gpus or {}, before.gpus or {}
        same = gpus.get(uuid) == earlier.get(uuid) and self.promised.get(uuid) == before.promised.get(uuid)
        return same and before.gpus is not None

    @property
    def policies(self) -> tuple[object, ...]:
        """What decides taints, judges faults, and says which GPUs are shared."""
        shared = self.shared, self.changing, self.cleared
        return *shared, self.isolated, self.operator_allocated, self.health, self.repaired


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts known of one node at one moment. GPUs by UUID."""

    view: HardwareView = HardwareView(fault="The GPUs have not been read yet.")
    divisions: Mapping[GpuUuid, GpuMigView] = {}
    recovered: bool = False
    """Whether instance owners are known: the record was read and everything agrees with it."""
    wanted: WantedNode = WantedNode()
    published: PublishedPool | None = None
    problem: str = UNWRITTEN
    """Why no slices are published; "" if they are."""
    conflict: PluginConflict | None = None
    """Who else serves the driver on this node."""
    device_plugins: OtherAllocator | None = None
    """Device plugins that give out the same GPUs; None while unknown."""
    features: Features | None = None
    """The cluster features; None while unknown."""
    edits_problem: str | None = None
    """Why the edits are not from NVIDIA's toolkit; "" if they are, None while unknown or not asked."""
    leftovers: Mapping[ClaimUid, Leftover] = {}
    """Prepared claims that nothing can use any more."""
    time_slicing: Mapping[GpuUuid, TimeSlicing] = {}
    mps: Mapping[GpuUuid, GpuMps] = {}
    limit_library: LimitLibraryState = LimitLibraryState()

    def sharing(self, gpu: Gpu) -> GpuSharing:
        """How a GPU can be shared, and what its shares can be held to."""
        library = self.limit_library
        return GpuSharing(
            time_slicing=self.time_slicing.get(gpu.uuid, TimeSlicing()).supported,
            mps=self.mps.get(gpu.uuid, GpuMps()).supported,
            memory_limit=gpu.memory_limit,
            library=library.usable,
            library_problem=library.problem,
        )

    @property
    def gives_way_to(self) -> str:
        """To whom we leave the node, as a sentence; "" if to nobody."""
        return self.conflict.sentence if self.conflict is not None and self.conflict.gives_way else ""


class NewFacts(TypedDict, total=False):
    """Some of the facts, for the type checker: those that a part of the agent has learned."""

    view: HardwareView
    divisions: Mapping[GpuUuid, GpuMigView]
    recovered: bool
    wanted: WantedNode
    published: PublishedPool | None
    problem: str
    conflict: PluginConflict | None
    device_plugins: OtherAllocator | None
    features: Features | None
    edits_problem: str | None
    leftovers: Mapping[ClaimUid, Leftover]
    time_slicing: Mapping[GpuUuid, TimeSlicing]
    mps: Mapping[GpuUuid, GpuMps]
    limit_library: LimitLibraryState
