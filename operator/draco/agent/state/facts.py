"""What is known of one node at one moment, as values.

Owns their shape, and the sentences that say them. Where each comes from is its room's.
"""

from collections.abc import Mapping, Sequence

import msgspec

from draco.agent.hardware.gpus import GpuMigView
from draco.agent.hardware.monitor import HardwareView
from draco.agent.record.contents import PreparedClaim
from draco.kube.discovery import Features
from draco.resources.api.draco import GpuNodeSpec, IsolatedGpu, PromisedDevice, RepairedGpu, WantedGpu
from draco.resources.api.health import FaultOverride
from draco.resources.names import ClaimUid, GpuUuid
from draco.resources.texts import listed

UNWRITTEN = "The slices have not been written yet."


class PublishedPool(msgspec.Struct, frozen=True):
    """What the API server has from us: the pool's generation and its number of devices. None: nothing yet, or not now."""

    generation: int
    devices: int


class PluginConflict(msgspec.Struct, frozen=True):
    """Another plugin serves the driver, too; or somebody has our sockets. `gives_way`: it is for us to give way."""

    sentence: str
    gives_way: bool = False


class OtherAllocator(msgspec.Struct, frozen=True):
    """What device plugins give out on this node, and the sockets of those of which no more is known yet."""

    resources: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.resources or self.sockets)

    def gives(self, *, divided: bool) -> bool:
        """Whether it may give out a GPU, `divided` or not.

        MIG devices are counted by profile, or as GPUs where no others are. A GPU that is not divided is not counted by profile.
        """
        return bool(self) and (divided or not self.resources or any("/mig-" not in each for each in self.resources))

    def __str__(self) -> str:
        if not self:
            return ""
        what = f"gives out {listed(self.resources)}" if self.resources else f"listens on {listed(self.sockets)}"
        return (
            f"A device plugin {what} on this node: it and Draco would give the same GPU to two pods, so claims get none of what "
            "both give out. Remove the device plugin from the node, or Draco's agent."
        )


class Leftover(msgspec.Struct, frozen=True):
    """A claim that nothing can use any more: what became of it, and what keeps it from being given up ("" for nothing)."""

    claim: PreparedClaim
    why: str
    hindrance: str = ""

    def __str__(self) -> str:
        return f"C{self.clause[1:]}"

    @property
    def clause(self) -> str:
        """The same, to go on with after a semicolon."""
        then = f"it stays prepared while {self.hindrance}" if self.hindrance else "the agent gives it up in a moment"
        return f"claim {self.claim} is {self.why}; {then}."


class WantedNode(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of one node's GPUs, by UUID.

    `gpus` is None as long as nobody has said anything. `promised` is what claims have been allocated beside that, `forgotten` are
    GPUs that a person says are gone for good. `as_published`: it was read off slices, so nothing is made or destroyed by it.
    `generation` is that of the GpuNode that says so, 0 for none.
    """

    gpus: Mapping[GpuUuid, WantedGpu] | None = None
    promised: Mapping[GpuUuid, Sequence[PromisedDevice]] = {}
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
            isolated=spec.isolated,
            operator_allocated=spec.operator_allocated,
            health=spec.health,
            repaired=spec.repaired,
            forgotten=forgotten,
            as_published=as_published,
            generation=generation,
        )

    def asks_the_same_of(self, uuid: GpuUuid, before: "WantedNode") -> bool:
        """Whether as much is wanted of a GPU, and has been allocated of it, as before."""
        gpus, earlier = self.gpus or {}, before.gpus or {}
        same = gpus.get(uuid) == earlier.get(uuid) and self.promised.get(uuid) == before.promised.get(uuid)
        return same and before.gpus is not None

    @property
    def policies(self) -> tuple[object, ...]:
        """What taints GPUs and judges their faults."""
        return self.isolated, self.operator_allocated, self.health, self.repaired


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one node at one moment. GPUs by UUID."""

    view: HardwareView = HardwareView(fault="The GPUs have not been read yet.")
    divisions: Mapping[GpuUuid, GpuMigView] = {}
    recovered: bool = False
    """Whether it is known whose the instances are: the record has been read, and all agrees with it."""
    wanted: WantedNode = WantedNode()
    published: PublishedPool | None = None
    problem: str = UNWRITTEN
    """Why no slices are published, "" where they are."""
    conflict: PluginConflict | None = None
    """Who else serves the driver on this node."""
    device_plugins: OtherAllocator | None = None
    """Which device plugins give out the same GPUs; None where that is not known."""
    features: Features | None = None
    """What the cluster can do, once that is known."""
    edits_problem: str | None = None
    """Why NVIDIA's toolkit does not say what containers get; "" when it does, None where that is not known or not asked."""
    leftovers: Mapping[ClaimUid, Leftover] = {}
    """Claims that are prepared and that nothing can use any more."""

    @property
    def gives_way_to(self) -> str:
        """To whom we leave the node, as a sentence; "" while it is ours."""
        return self.conflict.sentence if self.conflict is not None and self.conflict.gives_way else ""
