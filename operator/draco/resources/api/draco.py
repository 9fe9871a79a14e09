"""GpuNode and MigPolicy; their schemas are in `crds/`, and a test compares the two."""

from datetime import datetime
from enum import StrEnum

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import DeviceSelector
from draco.resources.api.health import FaultOverride, GpuFaultStatus
from draco.resources.api.meta import Condition, LabelSelector, ObjectStruct, TimeWindow, find_condition
from draco.resources.api.sharing import SharedGpu
from draco.resources.api.taints import DeviceTaint
from draco.resources.names import CONDITION_READY, REASON_AGENT_LOST, PoolKey


class MigMode(StrEnum):
    """Who decides the layout of a GPU: nobody (MIG is off), a person, or claims."""

    DISABLED = "Disabled"
    STATIC = "Static"
    DYNAMIC = "Dynamic"


class MigState(StrEnum):
    """State of a GPU's partitions. Dirty: unknown or not as journaled; nothing is created until a clean reading."""

    READY = "Ready"
    CHANGING = "Changing"
    DIRTY = "Dirty"
    NEEDS_RESET = "NeedsReset"


class InstanceUse(StrEnum):
    """Purpose of an instance. Foreign: made by others. Orphan: Draco's, or half made, and waiting to be destroyed."""

    CLAIM = "Claim"
    WARM = "Warm"
    LAYOUT = "Layout"
    FOREIGN = "Foreign"
    ORPHAN = "Orphan"


class InstanceStatus(ApiStruct, frozen=True, kw_only=True):
    """One GPU instance as NVML lists it; `start` and `size` in memory units.

    `uuid` is empty without a compute instance, `device` if it is not published, `claim` ("namespace/name") if no claim holds it.
    `holder` keeps it from being destroyed.
    """

    profile: str
    start: int
    size: int
    uuid: str = ""
    device: str = ""
    use: InstanceUse = InstanceUse.FOREIGN
    claim: str = ""
    holder: str = ""


class MemoryLimitBy(StrEnum):
    """Who holds programs to a limit on the memory of a shared GPU: the driver all of a container's, together; MPS each client."""

    DRIVER = "driver"
    MPS = "mps"
    LIBRARY = "library"
    NONE = "none"


class GpuSharing(ApiStruct, frozen=True, kw_only=True):
    """How the agent can share a GPU among programs; None if unknown.

    `time_slicing`: whether its time slice can be set. `mps`: whether claims can have MPS on it. `library`: whether its node has
    the library of enforcement Library; if not, `library_problem` is why, as the end of a sentence.
    """

    time_slicing: bool | None = None
    mps: bool | None = None
    memory_limit: MemoryLimitBy | None = None
    library: bool | None = None
    library_problem: str = ""


class GpuMig(ApiStruct, frozen=True, kw_only=True):
    """MIG on one GPU. `pending`: a mode change waits for a reset. `board` names one of the node's board tables."""

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
    """The profiles that NVML reports for a board, shared by all equal GPUs of a node."""

    name: str
    profiles: list[MigProfile] = []


class GpuStatus(ApiStruct, frozen=True, kw_only=True):
    """One GPU as its agent sees it; `device` is its published name, `notes` are unknowns and obstacles, but no faults."""

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
    sharing: GpuSharing | None = None


class UnidentifiedGpuStatus(ApiStruct, frozen=True, kw_only=True):
    """A GPU that NVML counts but that cannot be used, and why. `uuid` is "" if unknown."""

    index: int
    uuid: str = ""
    message: str = ""


class WantedInstance(ApiStruct, frozen=True, kw_only=True):
    """One instance of a static layout: a profile at a memory unit."""

    profile: str
    start: int


class ProfileCount(ApiStruct, frozen=True, kw_only=True):
    """A number of instances of a profile on each GPU."""

    profile: str
    count: int = 1


class WantedGpu(ApiStruct, frozen=True, kw_only=True):
    """The wanted state of one GPU, and its policy.

    `profiles` limits what Dynamic may make (empty: all), `layout` is for Static. `reset_permitted` allows changes that need a GPU
    reset.
    """

    uuid: str
    policy: str
    mode: MigMode
    profiles: list[str] = []
    layout: list[WantedInstance] = []
    warm: list[ProfileCount] = []
    reset_permitted: bool = False


class PromisedDevice(ApiStruct, frozen=True, kw_only=True):
    """A device allocated to a claim that the wanted state of its GPU would not offer.

    `uuid` is the GPU's, `claim` "namespace/name". A partition's name contains its position (see `read_partition_name`).
    """

    device: str
    uuid: str
    claim: str = ""


class IsolatedGpu(ApiStruct, frozen=True, kw_only=True):
    """Devices published with a taint from the start, because of the DeviceMaintenance `request`.

    `uuid` is the GPU's, "" for all GPUs of the node. If `device` names a partition, it applies to that and to what overlaps it,
    otherwise to the whole GPU.
    """

    request: str
    uuid: str = ""
    device: str = ""
    key: str
    value: str = ""
    effect: str

    @property
    def taint(self) -> DeviceTaint:
        """The taint to publish."""
        return DeviceTaint(key=self.key, value=self.value, effect=self.effect)


class RepairedGpu(ApiStruct, frozen=True, kw_only=True):
    """A GPU whose remediation Job, opened by a HealthPolicy, has succeeded, so that it presumably was reset.

    Faults that a reset ends are over, unless the agent saw them after `until`, a time that the agent itself reported.
    """

    uuid: str
    request: str
    until: datetime


class ClearedGpu(ApiStruct, frozen=True, kw_only=True):
    """A GPU that no claim held otherwise than in the wanted form, long after a pool up to this generation told of the change."""

    uuid: str
    generation: int


class GpuNodeSpec(ApiStruct, frozen=True, kw_only=True):
    """What the operator wants of the node. A GPU that is not listed belongs to no policy: nothing new is created on it.

    `promised` devices stay published and free for their claims. `shared` GPUs are published for several claims; those in
    `changing` (UUIDs) are to be published otherwise when their claims are gone, and are tainted until then. The agent publishes
    another form of a GPU only once it is `cleared`.
    `operator_allocated` are UUIDs of GPUs that Draco allocates, which are tainted against kube-scheduler. `decided` are the UUIDs
    of all GPUs covered by this spec; for others the agent keeps its last instructions. Empty: the operator has decided nothing
    yet. `repaired` is kept only while the agent reports such a fault.
    """

    gpus: list[WantedGpu] = []
    promised: list[PromisedDevice] = []
    shared: list[SharedGpu] = []
    changing: list[str] = []
    cleared: list[ClearedGpu] = []
    isolated: list[IsolatedGpu] = []
    health: list[FaultOverride] = []
    repaired: list[RepairedGpu] = []
    operator_allocated: list[str] = []
    decided: list[str] = []


class GpuNodeStatus(ApiStruct, frozen=True, kw_only=True):
    """What the agent sees and does. `isolates`: it obeys `spec.isolated`, and the cluster keeps taints in slices."""

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
        """The UID of the Node that owns it; "" if none does."""
        owners = (each.uid for each in self.metadata.owner_references if each.kind == "Node")
        return next(owners, "")

    @property
    def is_agent_lost(self) -> bool:
        """Whether the operator reports the agent as lost, so that its reports may be out of date."""
        ready = find_condition(self.status.conditions, CONDITION_READY)
        return ready is not None and ready.reason == REASON_AGENT_LOST

    @property
    def pool(self) -> PoolKey:
        """The pool that its agent publishes."""
        return PoolKey(self.status.driver, self.metadata.name)


class LayoutInstances(ApiStruct, frozen=True, kw_only=True):
    """Instances of one profile in a layout; without `start`, wherever the layout has room."""

    profile: str
    count: int = 1
    start: int | None = None


class MigLayout(ApiStruct, frozen=True, kw_only=True):
    """A named layout of one GPU."""

    name: str
    instances: list[LayoutInstances]


class IdleClaims(StrEnum):
    """What repair does about idle claims that block a pod: report them, or release their allocations."""

    KEEP = "Keep"
    RELEASE = "Release"


class MigRepair(ApiStruct, frozen=True, kw_only=True):
    """How many idle claims may be moved to unblock a pending one, and whether Draco may release them itself."""

    max_moves: int = 2
    idle_claims: IdleClaims = IdleClaims.KEEP


class ResetPermit(StrEnum):
    """When a GPU may be reset."""

    NEVER = "Never"
    IN_WINDOWS = "InWindows"
    ALWAYS = "Always"


class MigReset(ApiStruct, frozen=True, kw_only=True):
    """Whether and when changes that need a GPU reset may be made."""

    permit: ResetPermit = ResetPermit.NEVER
    windows: list[TimeWindow] = []


class Allocator(StrEnum):
    """Who allocates devices to claims."""

    SCHEDULER = "Scheduler"
    OPERATOR = "Operator"


class PlacementStrategy(StrEnum):
    """Whether claims go to the fullest possible node or to the emptiest."""

    PACK = "Pack"
    SPREAD = "Spread"


class PartialLoss(StrEnum):
    """What happens to a running group whose lost pod cannot be placed again: it keeps its devices, or releases them."""

    KEEP = "Keep"
    RELEASE = "Release"


class MigGangs(ApiStruct, frozen=True, kw_only=True):
    """Settings of gangs. `release_leaked_after`: how long one without pods may keep devices ("": forever)."""

    release_leaked_after: str = ""
    on_partial_loss: PartialLoss = PartialLoss.KEEP


class MigReservations(ApiStruct, frozen=True, kw_only=True):
    """Settings of DeviceReservations. `longest_idle`: how long a claim may stay unused ("": until the reservation ends)."""

    longest_idle: str = ""


class PreemptionPermit(StrEnum):
    """Which pods Draco may preempt for claims of a higher priority."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class WarmAhead(ApiStruct, frozen=True, kw_only=True):
    """Idle instances kept according to the claim rate, measured over `window`: at most `limits` on all GPUs."""

    window: str = "10m"
    lead_time_seconds: int = 15
    limits: list[ProfileCount]


class MigPolicySpec(ApiStruct, frozen=True, kw_only=True):
    """Selected GPUs, and how to partition them."""

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
    """State of a policy on one node."""

    name: str
    gpus: int | None = None
    applied: int | None = None
    changing: int | None = None
    failed: int | None = None
    message: str = ""


class MigPolicyConflict(ApiStruct, frozen=True, kw_only=True):
    """An older policy that also selects GPUs of this one."""

    policy: str
    gpus: int


class MigPolicyStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `conflicts` are older policies that keep GPUs from this one."""

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
    """How selected GPUs are partitioned."""

    spec: MigPolicySpec
    status: MigPolicyStatus = MigPolicyStatus()
