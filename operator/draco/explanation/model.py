"""What an explanation is made of, ready to be written as JSON.

Owns the structs and the closed sets of words in them; fields are only ever added. Computes nothing but what a struct says of
itself. `explain` fills Explanation, RequestExplanation, CauseCount and the node causes that are about devices; `verdicts` fills
DeviceVerdict and its parts; `placement` the node causes that are about the pod; `problems.claims` Problem; `nearest` NearestMiss;
`unmet` UnmetRequest; `standing` UseObstacle.
"""

from collections.abc import Sequence
from enum import StrEnum

from draco.resources.api.base import OutputStruct

SCHEMA = "draco.dev/explanation/v1"
"""Name of the JSON document. Fields are only ever added under one name."""


class Cause(StrEnum):
    """What stands in the way of one device for one request; of several, the first in this order. No device is left out."""

    NOT_SELECTED = "NotSelected"
    """A selector of the class or of the claim answers false."""
    POOL_OBSOLETE = "PoolObsolete"
    """Its slice is older than the pool's newest generation."""
    POOL_INCOMPLETE = "PoolIncomplete"
    """Not all slices of the pool's newest generation are there."""
    POOL_INVALID = "PoolInvalid"
    """The pool contradicts itself: two devices or counter sets of one name, or a counter that it does not have."""
    NO_NODE = "NoNode"
    """No node that exists can reach it."""
    NODE_RULES = "NodeRules"
    """The pod may go to no node that can reach it."""
    IN_USE = "InUse"
    """Another claim holds it."""
    SELECTOR_FAILED = "SelectorFailed"
    """A selector fails on it, which fails the pod on every node."""
    TAINTED = "Tainted"
    """It has a taint that the request does not tolerate."""
    COUNTERS_SHORT = "CountersShort"
    """Partitions in use leave too little of a shared counter."""
    CAPACITY_SHORT = "CapacityShort"
    """It lacks a capacity that is asked for, may not be asked for so much, or has too little left of it."""
    CONSTRAINT = "Constraint"
    """It lacks an attribute that a constraint of the claim compares."""
    FREE = "Free"
    """Nothing: it would do on its own."""


class PendingReason(StrEnum):
    """Why claims wait, in one word: the main cause. The label of the metric `draco_claim_pending`."""

    CLASS_MISSING = "ClassMissing"
    """A DeviceClass does not exist."""
    INVALID = "Invalid"
    """A claim asks for something that cannot be understood, or for more devices than a claim may have."""
    SELECTOR_ERROR = "SelectorError"
    """A selector does not compile, or fails on a device: the scheduler gives the pod up on every node."""
    NO_DEVICES = "NoDevices"
    """Nothing is published at all."""
    NOTHING_SELECTED = "NothingSelected"
    """No device is selected by the class and the claim."""
    POOL_BROKEN = "PoolBroken"
    """The devices are in pools that are incomplete, obsolete or invalid."""
    NO_NODE = "NoNode"
    """The devices belong to nodes that do not exist."""
    NODE_RULES = "NodeRules"
    """The devices are on nodes to which the pod may not go."""
    IN_USE = "InUse"
    """Other claims hold the devices."""
    TAINTED = "Tainted"
    """The devices are tainted."""
    COUNTERS_SHORT = "CountersShort"
    """Partitions in use leave too little of their GPUs."""
    CAPACITY_SHORT = "CapacityShort"
    """Too little is left of shared devices."""
    CONSTRAINT = "Constraint"
    """There are free devices enough, but a constraint does not let them be used together."""
    NOT_ENOUGH_ON_ONE_NODE = "NotEnoughOnOneNode"
    """There are free devices, but no node has as many as are wanted."""
    NOT_TOGETHER = "NotTogether"
    """Each request fits alone, but they need the same devices or are served by different nodes."""
    SEARCH_TOO_LONG = "SearchTooLong"
    """There are too many combinations to try."""
    FITS = "Fits"
    """The claims can be allocated now: kube-scheduler has not done so yet, or the pod may wait for something else."""
    RESERVED_BY_OTHERS = "ReservedByOthers"
    """A claim is allocated, and as many pods use it as may."""
    WAITING_FOR_BINDING = "WaitingForBinding"
    """A claim is allocated, and devices are being made ready, or have failed to be."""
    BOUND_ELSEWHERE = "BoundElsewhere"
    """A claim is allocated, and the pod may go to no node that can reach its devices."""
    DEVICE_UNUSABLE = "DeviceUnusable"
    """Every claim is allocated, and the pod cannot use a device: it is gone, allocated twice, tainted, or refused to kubelet."""
    ALLOCATED = "Allocated"
    """Every claim is allocated, and nothing is known to be in the pod's way."""
    CLAIM_MISSING = "ClaimMissing"
    """A claim does not exist, or has not been made from its template yet."""
    BYPASSES_SCHEDULER = "BypassesScheduler"
    """The pod names its node itself, so that it never comes to the scheduler, and nobody else allocates claims."""
    GATED = "SchedulingGated"
    """The pod has a scheduling gate, and it is not devices of its own from Draco that it waits for."""
    LIMIT_REACHED = "LimitReached"
    """A claim of Draco's has devices to go to, and a DeviceLimit forbids it to take them."""
    CLAIM_DELETING = "ClaimDeleting"
    """A claim is being deleted; it is not allocated any more."""


class SelectorRef(OutputStruct, frozen=True, kw_only=True):
    """A selector: `source` is "class NAME" or "claim NAMESPACE/NAME" (or "claim template …"), `index` its place there."""

    source: str
    index: int
    expression: str

    @property
    def class_name(self) -> str:
        """The DeviceClass that it is a selector of; "" for one of a claim."""
        kind, _, name = self.source.partition(" ")
        return name if kind == "class" else ""


class SeenValue(OutputStruct, frozen=True, kw_only=True):
    """A value that a selector or constraint met: `path` as it is written in a selector, `value` "" where there is none."""

    path: str
    value: str
    devices: int = 1


class Holder(OutputStruct, frozen=True, kw_only=True):
    """A claim that holds a device or a share of it. `idle`: allocated, but reserved for nobody."""

    claim: str
    consumers: list[str] = []
    """Who it is reserved for: "pod NAME", in the claim's namespace."""
    idle: bool = False
    devices: int = 1


class Shortage(OutputStruct, frozen=True, kw_only=True):
    """Too little of a counter ("set/counter") or a capacity. Quantities as they are written in manifests."""

    name: str
    needed: str
    left: str
    total: str = ""
    takers: list[str] = []
    """Devices in use that take of it, as "device (claim)"; the biggest first."""


class TaintSeen(OutputStruct, frozen=True, kw_only=True):
    """A taint that is not tolerated; `rule` names the DeviceTaintRule, "" for the driver's own."""

    taint: str
    rule: str = ""


class CauseCount(OutputStruct, frozen=True, kw_only=True):
    """Devices with one cause, in one respect: one selector, one taint, one counter.

    Which of the fields after `text` are filled depends on the cause. Lists are bounded; the most frequent come first.
    """

    cause: Cause
    devices: int
    nodes: int
    """On how many nodes they are; devices that many nodes reach count for none."""
    text: str
    """In words, without the number: "not selected by …"."""
    example: str = ""
    """One of the devices, "driver/pool/device"."""
    node_names: list[str] = []
    selector: SelectorRef | None = None
    error: str = ""
    values: list[SeenValue] = []
    holders: list[Holder] = []
    holders_total: int = 0
    dedicated: bool = False
    """In use, and a part would do: their driver publishes them for one claim at a time."""
    taints: list[TaintSeen] = []
    shortage: Shortage | None = None
    pools: list[str] = []
    newer: str = ""
    """Where the newer generation of such a pool comes from, if from another node."""
    constraint: str = ""


class RequestExplanation(OutputStruct, frozen=True, kw_only=True):
    """One request, or one alternative of it: every published device, counted once by what stands in its way."""

    claim: str
    request: str
    """"name", or "name/alternative"."""
    device_class: str
    mode: str = "ExactCount"
    wanted: int = 1
    admin_access: bool = False
    devices: int = 0
    """Every device that is published: the sum of all counts."""
    causes: list[CauseCount] = []
    """Most useful first; Cause.FREE last."""
    free: int = 0
    """Devices that would do, each on its own."""
    most_free_on_one_node: int = 0
    best_node: str = ""
    fits_alone: bool = False
    """Whether some node could meet this request if it were the only one."""

    @property
    def selected(self) -> int:
        """How many devices its selectors select, free or not."""
        return sum(each.devices for each in self.causes if each.cause is not Cause.NOT_SELECTED)


def alternatives(requests: Sequence[RequestExplanation]) -> list[list[int]]:
    """The places of requests, those together that are alternatives of one request."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, each in enumerate(requests):
        found.setdefault((each.claim, each.request.partition("/")[0]), []).append(number)
    return list(found.values())


class NodeReason(StrEnum):
    """Why a node will not do."""

    NODE_NAME = "NodeName"
    UNSCHEDULABLE = "Unschedulable"
    NOT_READY = "NotReady"
    TAINTED = "Tainted"
    NODE_SELECTOR = "NodeSelector"
    NODE_AFFINITY = "NodeAffinity"
    ALLOCATION = "Allocation"
    """An allocated claim of the pod is bound to other nodes."""
    NO_DEVICES = "NoDevices"
    """It reaches no device that is free and selected."""
    NOT_ENOUGH = "NotEnough"
    """It has some, but fewer than are wanted."""
    CONSTRAINT = "Constraint"
    """It has enough, but a constraint does not let them be used together."""
    COUNTERS_SHORT = "CountersShort"
    """Each of its free partitions would do, but not that many of them: they draw from the same counters."""
    NOT_TOGETHER = "NotTogether"
    """Each request fits there alone."""
    ALL_MODE = "AllMode"
    """A request wants every matching device of the node, and one of them is not to be had."""
    POOL_BROKEN = "PoolBroken"
    ERROR = "Error"


class NodeCause(OutputStruct, frozen=True, kw_only=True):
    """Nodes that will not do, all in one way. Each node is in one of these or in `fits_on`.

    `placement` fills those of the pod's rules, `explain` those of devices.
    """

    reason: NodeReason
    text: str
    """In words, to follow "3 nodes are" or "node a is": "without the label …"."""
    nodes: int
    names: list[str] = []
    """Bounded; the nearest to fitting, or the first by name."""
    request: str = ""
    free: int = 0
    wanted: int = 0
    names_subject: bool = False
    """As in Explanation."""


class ProblemKind(StrEnum):
    """What is wrong with a request itself, whatever is free."""

    CLASS_MISSING = "ClassMissing"
    CLASS_SELECTS_NOTHING = "ClassSelectsNothing"
    SELECTOR_INVALID = "SelectorInvalid"
    SELECTOR_ERRORS = "SelectorErrors"
    SELECTOR_NEVER_TRUE = "SelectorNeverTrue"
    UNKNOWN_ATTRIBUTE = "UnknownAttribute"
    UNKNOWN_CAPACITY = "UnknownCapacity"
    UNKNOWN_DOMAIN = "UnknownDomain"
    UNKNOWN_DRIVER = "UnknownDriver"
    UNKNOWN_REQUEST = "UnknownRequest"
    TOO_MANY_DEVICES = "TooManyDevices"
    CONFIGURATION_REFUSED = "ConfigurationRefused"
    """It can be allocated, and Draco's agent refuses to prepare it as it is configured."""
    INVALID = "Invalid"


class Problem(OutputStruct, frozen=True, kw_only=True):
    """Something wrong with a claim. `problems.claims` fills it."""

    kind: ProblemKind
    text: str
    """One sentence: what is wrong."""
    claim: str = ""
    request: str = ""
    selector: SelectorRef | None = None
    remedy: str = ""
    """What to write instead."""
    fatal: bool = False
    """Whether the claim cannot be allocated on any node while it is so."""
    names_subject: bool = False
    """As in Explanation."""


class ChangeKind(StrEnum):
    """What a nearest miss would change, from small to big: what helps without taking anything from anybody comes first."""

    OTHER_CLASS = "OtherClass"
    FREE_IDLE_CLAIM = "FreeIdleClaim"
    LIFT_TAINT = "LiftTaint"
    UNCORDON = "Uncordon"
    REPAIR_POOL = "RepairPool"
    TOLERATE_NODE = "TolerateNode"
    NODE_SELECTOR = "NodeSelector"
    RELAX_SELECTOR = "RelaxSelector"
    LOWER_CAPACITY = "LowerCapacity"
    LOWER_COUNT = "LowerCount"
    LOWER_OTHERS = "LowerOthers"
    """Another claim takes of a capacity what it does not ask for."""
    FREE_CLAIM = "FreeClaim"
    DROP_CONSTRAINT = "DropConstraint"
    DROP_SELECTOR = "DropSelector"


class NearestMiss(OutputStruct, frozen=True, kw_only=True):
    """A single change with which the claims would be allocated: tried out with the allocator. `nearest` fills it."""

    kind: ChangeKind
    text: str
    """What to do, as an imperative: "lift the taint … from …"."""
    node: str = ""
    """Where it would then fit; one of the nodes, if there are more."""
    devices: list[str] = []
    claim: str = ""
    """The claim that would have to go or to change."""
    names_subject: bool = False
    """As in Explanation."""


class UnmetRequest(OutputStruct, frozen=True, kw_only=True):
    """A request that no node could meet even if nobody used it. `remedies.unmet` fills it.

    `product` and `profile` are "" where the request leaves them open.
    """

    claim: str
    request: str
    device_class: str
    product: str = ""
    profile: str = ""
    """Of a MIG partition."""
    count: int
    published: int = 0
    """Devices that it selects in all of the cluster. With none, product and profile are what the claim or class says."""


class DeviceVerdict(OutputStruct, frozen=True, kw_only=True):
    """One device and one request: why not. `verdicts` fills it."""

    device: str
    """"driver/pool/device"."""
    node: str = ""
    """The node it belongs to; "" for devices that several nodes may reach."""
    claim: str
    request: str
    cause: Cause
    text: str
    selector: SelectorRef | None = None
    error: str = ""
    values: list[SeenValue] = []
    holders: list[Holder] = []
    taints: list[TaintSeen] = []
    shortage: Shortage | None = None
    binding_conditions: list[str] = []
    """Conditions that must become true once it is allocated, before the pod is bound."""


class ObstacleKind(StrEnum):
    """What keeps a device that is allocated from being used."""

    NODE_GONE = "NodeGone"
    """Its node does not exist."""
    DRIVER_SILENT = "DriverSilent"
    """Nothing is published for its pool."""
    NOT_PUBLISHED = "NotPublished"
    """Its pool is published without it."""
    OTHER_BOARD = "OtherBoard"
    """Its name is that of another board now, or of another machine's: not of the one on which the claim was prepared."""
    GIVEN_TWICE = "GivenTwice"
    """Another claim has it too, or a device of the same hardware."""
    TAINTED = "Tainted"
    """It has a taint that its claim does not tolerate."""
    CONFIGURATION_REFUSED = "ConfigurationRefused"
    """Draco's agent refuses to prepare it as it is configured."""


class UseObstacle(OutputStruct, frozen=True, kw_only=True):
    """What keeps a pod from using a device of its claim; `device` is "" where it is about the claim. `standing` fills it."""

    kind: ObstacleKind
    claim: str
    device: str = ""
    text: str
    """What is so, as the end of a sentence."""
    remedy: str
    """What to do, as an imperative."""


class AllocatedClaim(OutputStruct, frozen=True, kw_only=True):
    """A claim of the pod that is allocated already."""

    claim: str
    devices: list[str] = []
    consumers: list[str] = []
    waiting_for: list[str] = []
    """Binding conditions that are not true yet, "device: condition"."""
    failed: list[str] = []
    """Binding failure conditions that are true."""
    nodes: str = ""
    """Where its devices can be reached, in words; "" for everywhere."""


class Explanation(OutputStruct, frozen=True, kw_only=True):
    """Why the claims of one pod, or one claim, are or are not allocated. `str` gives one paragraph for an Event."""

    schema: str = SCHEMA
    claims: list[str] = []
    pod: str = ""
    node: str = ""
    """The pod's, where it has one already."""
    reason: PendingReason
    summary: str = ""
    """One paragraph: the decisive cause, the fix, counts. At most 1000 characters, and 300 in ordinary cases."""
    names_subject: bool = False
    """Whether the summary names the pod or one of its claims, so that it is true of no other pod that asks for the same."""
    names_group: bool = False
    """Whether it names the pod's group, so that it is true of pods of that group only."""
    fits: bool = False
    """Whether the scheduler could allocate all claims now: some node does, and no device makes a selector fail."""
    fits_on: list[str] = []
    """Nodes on which the claims can be allocated together; the first ones, of `fits_on_total`."""
    fits_on_total: int = 0
    error: str = ""
    """What makes the scheduler give up on every node, in its words."""
    nodes_total: int = 0
    devices_total: int = 0
    requests: list[RequestExplanation] = []
    nodes: list[NodeCause] = []
    """Why the other nodes will not do, most useful first."""
    problems: list[Problem] = []
    nearest: list[NearestMiss] = []
    stays: str = ""
    """What would be in the way if nobody else had any device: waiting does not mend it. "" where nothing would."""
    unmet: list[UnmetRequest] = []
    """What no node of the cluster could give, and a new one would have to have."""
    counted_on: str = ""
    """The node on which Karpenter counts for the pod, whose devices are tainted: it knows no taints of devices, and adds none."""
    allocated: list[AllocatedClaim] = []
    obstacles: list[UseObstacle] = []
    """What keeps the pod from using what its claims have."""
    room_on: list[str] = []
    """Nodes on which the claims of such a pod could be allocated again; the first ones."""
    upstream_bugs: list[str] = []
    """Bugs of the cluster's scheduler that may make it decide otherwise."""
    scheduler: str = ""
    """What kube-scheduler last said of the pod."""
    by_draco: bool = False
    """Whether one of those that wait is Draco's to allocate: kube-scheduler allocates none of a pod's before."""
    ended: str = ""
    """A pod that has used the claims to its end and is not deleted: for it Kubernetes takes back what Draco allocates."""
    group: str = ""
    """The group of pods that the pod starts together with, where Draco allocates; "PodGroup default/train"."""
    preemption: str = ""
    """Whether pods of a lower priority are evicted for the pod, where Draco allocates and others have the devices."""
    devices: list[DeviceVerdict] = []
    """Only where asked for."""

    def __str__(self) -> str:
        return self.summary
