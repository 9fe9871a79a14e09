"""GpuNode and MigPolicy, kinds of draco.dev/v1alpha1; the others are in `maintenance` and `health`.

Owns the structs; the schemas people meet are in `crds/`, and a test holds the two together.
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import DeviceSelector
from draco.resources.api.health import FaultOverride, GpuFaultStatus
from draco.resources.api.meta import Condition, LabelSelector, ObjectStruct, TimeWindow, find_condition
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import CONDITION_READY, REASON_AGENT_LOST, PoolKey


class MigMode(StrEnum):
    """Who lays a GPU out: nobody (MIG is off), a person, or what claims ask for."""

    DISABLED = "Disabled"
    STATIC = "Static"
    DYNAMIC = "Dynamic"


class MigState(StrEnum):
    """How a GPU's partitions stand. Dirty: not known or not as journaled, so nothing is made until a clean look."""

    READY = "Ready"
    CHANGING = "Changing"
    DIRTY = "Dirty"
    NEEDS_RESET = "NeedsReset"


class InstanceUse(StrEnum):
    """What an instance is there for. Foreign: made by others. Orphan: Draco's own or half made, and waiting to be destroyed."""

    CLAIM = "Claim"
    WARM = "Warm"
    LAYOUT = "Layout"
    FOREIGN = "Foreign"
    ORPHAN = "Orphan"


class InstanceStatus(ApiStruct, frozen=True, kw_only=True):
    """One GPU instance as NVML lists it; `start` and `size` in memory units.

    `uuid` and `device` are empty where it has no compute instance or is not published, `claim` ("namespace/name") where none
    holds it. `holder` is who keeps it from being destroyed.
    """

    profile: str
    start: int
    size: int
    uuid: str = ""
    device: str = ""
    use: InstanceUse = InstanceUse.FOREIGN
    claim: str = ""
    holder: str = ""


class GpuMig(ApiStruct, frozen=True, kw_only=True):
    """MIG on one GPU. `pending`: a change of the mode waits for a reset. `board` names a table of the node's boards."""

    capable: bool = False
    enabled: bool = False
    pending: bool = False
    board: str = ""
    state: MigState = MigState.READY
    message: str = ""
    instances: list[InstanceStatus] = []


class MigProfile(ApiStruct, frozen=True, kw_only=True):
    """One row of a board's table. `slices` are compute slices, `size` and `starts` memory units, `memory` a quantity."""

    id: int
    name: str
    slices: int
    size: int
    starts: list[int]
    max_instances: int = 0
    memory: str = ""
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class BoardTable(ApiStruct, frozen=True, kw_only=True):
    """What NVML says can be made on a board, once for all GPUs of a node that say the same."""

    name: str
    profiles: list[MigProfile] = []


class GpuStatus(ApiStruct, frozen=True, kw_only=True):
    """One physical GPU as its agent sees it. `device` is the name it is published under.

    `notes` are sentences on what is not known of it, and on what keeps it from claims without being a fault.
    """

    device: str
    uuid: str
    product_name: str = ""
    architecture: str = ""
    memory: str = ""
    minor: int = 0
    pci_bus_id: str = msgspec.field(default="", name="pciBusID")
    numa_node: int | None = None
    health: str = "Unknown"
    message: str = ""
    notes: list[str] = []
    faults: list[GpuFaultStatus] = []
    mig: GpuMig | None = None


class UnidentifiedGpuStatus(ApiStruct, frozen=True, kw_only=True):
    """A GPU that NVML counts and that cannot be given to anybody, and why. `uuid` is "" where not even that is known."""

    index: int
    uuid: str = ""
    message: str = ""


class WantedInstance(ApiStruct, frozen=True, kw_only=True):
    """One instance of a static layout: a profile at a memory unit."""

    profile: str
    start: int


class ProfileCount(ApiStruct, frozen=True, kw_only=True):
    """So many instances of a profile, on each GPU."""

    profile: str
    count: int = 1


class WantedGpu(ApiStruct, frozen=True, kw_only=True):
    """What the operator wants of one GPU, and by which policy.

    `profiles` limits what Dynamic may make (empty: all), `layout` is for Static. `reset_permitted` allows what needs a reset
    of the GPU.
    """

    uuid: str
    policy: str
    mode: MigMode
    profiles: list[str] = []
    layout: list[WantedInstance] = []
    warm: list[ProfileCount] = []
    reset_permitted: bool = False


class PromisedDevice(ApiStruct, frozen=True, kw_only=True):
    """A device that a claim has been allocated, and that its GPU would not offer by what is wanted of it.

    `uuid` is the GPU's, `claim` "namespace/name". The name of a partition says where it is (see `read_partition_name`).
    """

    device: str
    uuid: str
    claim: str = ""


class IsolatedGpu(ApiStruct, frozen=True, kw_only=True):
    """What is published with a taint from the first moment on, because a DeviceMaintenance, `request`, is about it.

    `uuid` is the GPU's, "" for every GPU of the node. If `device` is the name of a partition, then that and what overlaps it is
    meant, else all of the GPU.
    """

    request: str
    uuid: str = ""
    device: str = ""
    key: str
    value: str = ""
    effect: str

    @property
    def taint(self) -> DeviceTaint:
        """The taint as it is published."""
        return DeviceTaint(key=self.key, value=self.value, effect=self.effect)


class RepairedGpu(ApiStruct, frozen=True, kw_only=True):
    """A GPU on which the Job of a request that a HealthPolicy opened has succeeded: it was reset, as far as anybody can know.

    What a reset ends is over, unless the agent has seen it after `until`, which is a time that the agent itself has reported.
    """

    uuid: str
    request: str
    until: datetime


class GpuNodeSpec(ApiStruct, frozen=True, kw_only=True):
    """What the operator wants of the node. A GPU that is not listed belongs to no policy: nothing new is made on it.

    `promised` stays published and free for its claims. `operator_allocated` are the UUIDs of GPUs whose devices are kept from
    kube-scheduler, because Draco allocates them. `decided` are the UUIDs of the GPUs that all this is about: what is not said of
    any other is not known, so its agent goes on by what it was told last. Empty: the operator has decided nothing yet. `repaired`
    stands only as long as the agent reports a fault that it is about.
    """

    gpus: list[WantedGpu] = []
    promised: list[PromisedDevice] = []
    isolated: list[IsolatedGpu] = []
    health: list[FaultOverride] = []
    repaired: list[RepairedGpu] = []
    operator_allocated: list[str] = []
    decided: list[str] = []


class GpuNodeStatus(ApiStruct, frozen=True, kw_only=True):
    """What the agent sees and does. `isolates`: it heeds `spec.isolated`, and the cluster keeps taints in slices."""

    observed_generation: int = 0
    isolates: bool = False
    driver: str = ""
    agent_version: str = ""
    driver_version: str = ""
    cuda_driver_version: str = ""
    pool_generation: int = 0
    prepared_claims: int | None = None
    gpu_count: int | None = None
    mig_gpu_count: int | None = None
    mig_instance_count: int | None = None
    gpus: list[GpuStatus] = []
    unidentified: list[UnidentifiedGpuStatus] = []
    boards: list[BoardTable] = []
    conditions: list[Condition] = []


class GpuNode(ObjectStruct, frozen=True, kw_only=True):
    """A node with GPUs. Named after the Node and owned by it; its agent writes the status."""

    spec: GpuNodeSpec = GpuNodeSpec()
    status: GpuNodeStatus = GpuNodeStatus()

    @property
    def node_uid(self) -> str:
        """The UID of the Node that owns it; "" where nobody does."""
        owners = (each.uid for each in self.metadata.owner_references if each.kind == "Node")
        return next(owners, "")

    @property
    def is_agent_lost(self) -> bool:
        """Whether the operator says that the agent is lost: what it has reported may be so no more."""
        ready = find_condition(self.status.conditions, CONDITION_READY)
        return ready is not None and ready.reason == REASON_AGENT_LOST

    @property
    def pool(self) -> PoolKey:
        """The pool that its agent publishes."""
        return PoolKey(self.status.driver, self.metadata.name)


class LayoutInstances(ApiStruct, frozen=True, kw_only=True):
    """Instances of one profile in a layout. Without `start` they go where the layout has room."""

    profile: str
    count: int = 1
    start: int | None = None


class MigLayout(ApiStruct, frozen=True, kw_only=True):
    """A layout of one GPU, by name."""

    name: str
    instances: list[LayoutInstances]


class IdleClaims(StrEnum):
    """What repair does about idle claims in the way of a pod: says so, or takes their allocations back."""

    KEEP = "Keep"
    RELEASE = "Release"


class MigRepair(ApiStruct, frozen=True, kw_only=True):
    """How many idle claims may go to unblock a pending one, and whether Draco may let go of them itself."""

    max_moves: int = 2
    idle_claims: IdleClaims = IdleClaims.KEEP


class ResetPermit(StrEnum):
    """When a GPU may be reset."""

    NEVER = "Never"
    IN_WINDOWS = "InWindows"
    ALWAYS = "Always"


class MigReset(ApiStruct, frozen=True, kw_only=True):
    """Whether and when what needs a reset of the GPU may be done."""

    permit: ResetPermit = ResetPermit.NEVER
    windows: list[TimeWindow] = []


class Allocator(StrEnum):
    """Who gives devices to claims."""

    SCHEDULER = "Scheduler"
    OPERATOR = "Operator"


class PlacementStrategy(StrEnum):
    """Whether claims that could go to several nodes go to the fullest of them, or to the emptiest."""

    PACK = "Pack"
    SPREAD = "Spread"


class PartialLoss(StrEnum):
    """What becomes of a running group that has lost a pod which finds no place again: it keeps its devices, or leaves them."""

    KEEP = "Keep"
    RELEASE = "Release"


class MigGangs(ApiStruct, frozen=True, kw_only=True):
    """Groups of pods that start together. `release_leaked_after`: how long one without a pod may keep devices ("": for ever)."""

    release_leaked_after: str = ""
    on_partial_loss: PartialLoss = PartialLoss.KEEP


class MigReservations(ApiStruct, frozen=True, kw_only=True):
    """What DeviceReservations may do. `longest_idle`: how long a claim may keep devices that no pod uses ("": until its end)."""

    longest_idle: str = ""


class PreemptionPermit(StrEnum):
    """Whose pods Draco may evict so that claims of a higher priority get their devices."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class WarmAhead(ApiStruct, frozen=True, kw_only=True):
    """Idle instances kept by the rate at which claims take them, measured over `window`: at most `limits` on all GPUs."""

    window: str = "10m"
    lead_time_seconds: int = 15
    limits: list[ProfileCount]


class MigPolicySpec(ApiStruct, frozen=True, kw_only=True):
    """Which GPUs, and how they are to be partitioned."""

    mode: MigMode
    allocator: Allocator = Allocator.SCHEDULER
    placement: PlacementStrategy = PlacementStrategy.PACK
    preemption: PreemptionPermit = PreemptionPermit.NEVER
    node_selector: LabelSelector | None = None
    device_selectors: list[DeviceSelector] = []
    exclude: list[str] = []
    layouts: list[MigLayout] = []
    layout: str = ""
    profiles: list[str] = []
    warm: list[ProfileCount] = []
    warm_ahead: WarmAhead | None = None
    repair: MigRepair = MigRepair()
    gangs: MigGangs = MigGangs()
    reservations: MigReservations = MigReservations()
    reset: MigReset = MigReset()


class MigPolicyNode(ApiStruct, frozen=True, kw_only=True):
    """How a policy stands on one node."""

    name: str
    gpus: int | None = None
    applied: int | None = None
    changing: int | None = None
    failed: int | None = None
    message: str = ""


class MigPolicyConflict(ApiStruct, frozen=True, kw_only=True):
    """An older policy that has GPUs which this one selects too."""

    policy: str
    gpus: int


class MigPolicyStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `conflicts` are the older policies that keep GPUs from this one."""

    observed_generation: int = 0
    gpus: int | None = None
    applied: int | None = None
    changing: int | None = None
    failed: int | None = None
    message: str = ""
    conflicts: list[MigPolicyConflict] = []
    nodes: list[MigPolicyNode] = []
    conditions: list[Condition] = []


class MigPolicy(ObjectStruct, frozen=True, kw_only=True):
    """How some GPUs are to be partitioned."""

    spec: MigPolicySpec
    status: MigPolicyStatus = MigPolicyStatus()
