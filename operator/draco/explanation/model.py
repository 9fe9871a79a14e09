"""The structs of an explanation, ready to be written as JSON.

Owns the structs and their closed sets of words; fields are only added. Computes only properties of single structs. `explain`
fills Explanation, RequestExplanation, CauseCount and NodeCauses of devices; `node_rules` NodeCauses of the pod's rules;
`verdicts` DeviceVerdict and its parts; `problems.claims` Problem; `nearest` NearestMiss; `unmet` UnmetRequest; `held_allocations`
UseObstacle.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from draco.resources.api.base import OutputStruct

SCHEMA = "draco.dev/explanation/v1"
"""Schema of the JSON document. Fields are only added under one name."""


class Cause(StrEnum):
    """What blocks one device for one request; if several causes apply, the first in this order."""

    NOT_SELECTED = "NotSelected"
    """A selector of the class or the claim is false."""
    CONFIGURATION_REFUSED = "ConfigurationRefused"
    """It cannot have the configuration of a claim that Draco allocates."""
    POOL_OBSOLETE = "PoolObsolete"
    """Its slice is older than the pool's newest generation."""
    POOL_INCOMPLETE = "PoolIncomplete"
    """Slices of the pool's newest generation are missing."""
    POOL_INVALID = "PoolInvalid"
    """The pool contradicts itself: duplicate devices or counter sets, or an undefined counter."""
    NO_NODE = "NoNode"
    """No existing node can reach it."""
    NODE_RULES = "NodeRules"
    """The pod may use no node that can reach it."""
    IN_USE = "InUse"
    SELECTOR_FAILED = "SelectorFailed"
    """A selector fails on it, which fails the pod on every node."""
    TAINTED = "Tainted"
    """It has a taint that the request does not tolerate."""
    COUNTERS_SHORT = "CountersShort"
    """Partitions in use leave too little of a shared counter."""
    CAPACITY_SHORT = "CapacityShort"
    """It lacks a requested capacity, does not permit the amount, or has too little left."""
    CONSTRAINT = "Constraint"
    """It lacks an attribute that a constraint of the claim compares."""
    FREE = "Free"
    """Nothing: alone, it would do."""


class PendingReason(StrEnum):
    """The main cause why claims wait. Label of the metric `draco_claim_pending`."""

    CLASS_MISSING = "ClassMissing"
    INVALID = "Invalid"
    """A claim cannot be interpreted, or asks for more devices than a claim may have."""
    SELECTOR_ERROR = "SelectorError"
    """A selector does not compile, or fails on a device: the scheduler gives up on every node."""
    NO_DEVICES = "NoDevices"
    """Nothing is published at all."""
    NOTHING_SELECTED = "NothingSelected"
    """The class and the claim select no device."""
    CONFIGURATION_REFUSED = "ConfigurationRefused"
    """No device that the class and the claim select can have the claim's configuration, so Draco allocates none."""
    POOL_BROKEN = "PoolBroken"
    """The devices are in incomplete, obsolete or invalid pools."""
    NO_NODE = "NoNode"
    """The devices belong to nodes that do not exist."""
    NODE_RULES = "NodeRules"
    """The devices are on nodes that the pod may not use."""
    IN_USE = "InUse"
    TAINTED = "Tainted"
    COUNTERS_SHORT = "CountersShort"
    """Partitions in use leave too little of their GPUs."""
    CAPACITY_SHORT = "CapacityShort"
    """Shared devices have too little left."""
    CONSTRAINT = "Constraint"
    """Enough devices are free, but a constraint forbids using them together."""
    NOT_ENOUGH_ON_ONE_NODE = "NotEnoughOnOneNode"
    """Devices are free, but no node has enough."""
    NOT_TOGETHER = "NotTogether"
    """Each request fits alone, but they compete for devices or need different nodes."""
    SEARCH_TOO_LONG = "SearchTooLong"
    """There are too many combinations to try."""
    FITS = "Fits"
    """The claims can be allocated: kube-scheduler has not done so yet, or the pod waits for something else."""
    RESERVED_BY_OTHERS = "ReservedByOthers"
    """An allocated claim has its maximum number of users."""
    WAITING_FOR_BINDING = "WaitingForBinding"
    """A claim is allocated, but devices are being prepared or have failed (binding conditions)."""
    BOUND_ELSEWHERE = "BoundElsewhere"
    """A claim is allocated, but the pod may use no node that can reach its devices."""
    DEVICE_UNUSABLE = "DeviceUnusable"
    """All claims are allocated, but a device is gone, allocated twice, tainted, or refused to kubelet."""
    ALLOCATED = "Allocated"
    """All claims are allocated, and no obstacle is known."""
    CLAIM_MISSING = "ClaimMissing"
    """A claim does not exist, or has not been created from its template yet."""
    BYPASSES_SCHEDULER = "BypassesScheduler"
    """The pod sets spec.nodeName, so the scheduler never sees it, and nothing else allocates claims."""
    GATED = "SchedulingGated"
    """The pod has another scheduling gate than Draco's, or Draco's although none of its own claims waits for Draco."""
    LIMIT_REACHED = "LimitReached"
    """Draco could allocate the claim, but a DeviceLimit forbids it."""
    CLAIM_DELETING = "ClaimDeleting"
    """A claim is being deleted, so it will not be allocated."""


class SelectorRef(OutputStruct, frozen=True, kw_only=True):
    """A selector: `source` is "class NAME" or "claim NAMESPACE/NAME" (or "claim template …"), `index` its position there."""

    source: str
    index: int
    expression: str

    @property
    def class_name(self) -> str:
        """The DeviceClass of the selector; "" if it is a claim's."""
        kind, _, name = self.source.partition(" ")
        return name if kind == "class" else ""


class SeenValue(OutputStruct, frozen=True, kw_only=True):
    """A value that a selector or constraint read: `path` in selector syntax, `value` "" if the device has none."""

    path: str
    value: str
    devices: int = 1


class Holder(OutputStruct, frozen=True, kw_only=True):
    """A claim that holds a device or a share of it. `idle`: allocated, but reserved for nobody."""

    claim: str
    consumers: list[str] = []
    """"pod NAME" of each user, in the claim's namespace."""
    idle: bool = False
    devices: int = 1


class Shortage(OutputStruct, frozen=True, kw_only=True):
    """Too little of a counter ("set/counter") or a capacity. Quantities in manifest syntax."""

    name: str
    needed: str
    left: str
    total: str = ""
    takers: list[str] = []
    """Devices in use that draw from it, as "device (claim)"; the largest first."""


class TaintSeen(OutputStruct, frozen=True, kw_only=True):
    """An untolerated taint. `rule` names its DeviceTaintRule; "" if the driver sets it."""

    taint: str
    rule: str = ""


class CauseCount(OutputStruct, frozen=True, kw_only=True):
    """Devices with one cause and one detail: one selector, one taint, one counter.

    The cause determines which fields after `text` are set. Lists are bounded; the most frequent come first.
    """

    cause: Cause
    devices: int
    nodes: int
    """Number of nodes they are on; devices that several nodes reach do not count."""
    text: str
    """In words, without the number: "not selected by …"."""
    example: str = ""
    """One of the devices, as driver/pool/device."""
    node_names: list[str] = []
    selector: SelectorRef | None = None
    error: str = ""
    values: list[SeenValue] = []
    holders: list[Holder] = []
    holders_total: int = 0
    dedicated: bool = False
    """In use; the request asks only for a share, but the driver publishes the devices for one claim at a time."""
    taints: list[TaintSeen] = []
    shortage: Shortage | None = None
    pools: list[str] = []
    newer: str = ""
    """Node that publishes a newer generation of the pool, if not the device's own."""
    constraint: str = ""


NOT_ELIGIBLE = frozenset({Cause.NOT_SELECTED, Cause.CONFIGURATION_REFUSED})
"""Causes that leave a device out of consideration, so that it does not matter who uses it or where it is."""


class RequestExplanation(OutputStruct, frozen=True, kw_only=True):
    """One request, or one alternative of it: every published device, counted once by its cause."""

    claim: str
    request: str
    """As name, or name/alternative."""
    device_class: str
    mode: str = "ExactCount"
    wanted: int = 1
    admin_access: bool = False
    devices: int = 0
    """All published devices: the sum of all counts."""
    causes: list[CauseCount] = []
    """Most useful first; Cause.FREE last."""
    free: int = 0
    """Devices that would do, each alone."""
    most_free_on_one_node: int = 0
    best_node: str = ""
    fits_alone: bool = False
    """Whether some node could meet this request if it were the only one."""

    @property
    def selected(self) -> int:
        """How many devices its selectors select, free or not."""
        return sum(each.devices for each in self.causes if each.cause is not Cause.NOT_SELECTED)


def alternatives(requests: Sequence[RequestExplanation]) -> list[list[int]]:
    """The positions of requests, grouped if they are alternatives of one request."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, each in enumerate(requests):
        found.setdefault((each.claim, each.request.partition("/")[0]), []).append(number)
    return list(found.values())


class NodeReason(StrEnum):
    """Why a node does not fit."""

    NODE_NAME = "NodeName"
    UNSCHEDULABLE = "Unschedulable"
    NOT_READY = "NotReady"
    TAINTED = "Tainted"
    NODE_SELECTOR = "NodeSelector"
    NODE_AFFINITY = "NodeAffinity"
    ALLOCATION = "Allocation"
    """An allocated claim of the pod is bound to other nodes."""
    NO_DEVICES = "NoDevices"
    """It reaches no free selected device."""
    NOT_ENOUGH = "NotEnough"
    """It has fewer than wanted."""
    CONSTRAINT = "Constraint"
    """It has enough, but a constraint forbids using them together."""
    COUNTERS_SHORT = "CountersShort"
    """It has enough free partitions, but together they overdraw their counters."""
    NOT_TOGETHER = "NotTogether"
    """Each request fits there alone."""
    ALL_MODE = "AllMode"
    """A request wants all matching devices of the node, and one of them is unavailable."""
    POOL_BROKEN = "PoolBroken"
    ERROR = "Error"


class NodeCause(OutputStruct, frozen=True, kw_only=True):
    """Nodes that do not fit for one cause. Every node is in one NodeCause or in `fits_on`.

    `node_rules` fills causes of the pod's rules, `explain` those of devices.
    """

    reason: NodeReason
    text: str
    """In words, to follow "3 nodes are" or "node a is": "without the label …"."""
    nodes: int
    names: list[str] = []
    """Bounded; the closest to fitting first, or by name."""
    request: str = ""
    free: int = 0
    wanted: int = 0
    names_subject: bool = False


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
    TOO_MUCH_CAPACITY = "TooMuchCapacity"
    PUBLISHED_TWICE = "PublishedTwice"
    """A device has two values of what a selector reads, one that it wants: a scheduler may read either."""
    TOO_MANY_DEVICES = "TooManyDevices"
    CONFIGURATION_REFUSED = "ConfigurationRefused"
    """Draco's agent refuses to prepare its configuration."""
    CONFIGURATION_WITHOUT_EFFECT = "ConfigurationWithoutEffect"
    """A configuration is for other devices than those that the claim asks for, and Kubernetes tells nobody."""
    SHARES_REFUSED = "SharesRefused"
    """Draco's agent refuses to prepare what it would get: no container could use it together with its limits."""
    DEVICES_UNABLE = "DevicesUnable"
    """Some of the devices that it selects cannot have its configuration, and kube-scheduler does not know that."""


UNDECISIVE: Final = frozenset({ProblemKind.CONFIGURATION_WITHOUT_EFFECT, ProblemKind.DEVICES_UNABLE})
"""Problems with which a claim fits, and its pod may start."""


class Problem(OutputStruct, frozen=True, kw_only=True):
    """A defect of a claim."""

    kind: ProblemKind
    text: str
    """One sentence: what is wrong."""
    claim: str = ""
    request: str = ""
    selector: SelectorRef | None = None
    remedy: str = ""
    """What to write instead."""
    fatal: bool = False
    """Whether it keeps the claim from being allocated on any node."""
    is_of_class: bool = False
    """Whether a configuration of the DeviceClass is refused, not one of the claim's own."""
    names_subject: bool = False


class ChangeKind(StrEnum):
    """The change of a nearest miss, from small to large: changes that take nothing from others come first."""

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
    """Another claim holds an amount of a capacity that it did not request."""
    FREE_CLAIM = "FreeClaim"
    DROP_CONSTRAINT = "DropConstraint"
    DROP_SELECTOR = "DropSelector"


class NearestMiss(OutputStruct, frozen=True, kw_only=True):
    """A single change that lets the claims be allocated, as tried with the allocator."""

    kind: ChangeKind
    text: str
    """What to do, as an imperative: "lift the taint … from …"."""
    node: str = ""
    """Where it would fit then; one node if there are several."""
    devices: list[str] = []
    claim: str = ""
    """The claim that would have to go or change."""
    expression: str = ""
    """The selector to write, if it changes one."""
    names_subject: bool = False


class UnmetRequest(OutputStruct, frozen=True, kw_only=True):
    """A request that no node could meet even if nothing were in use. `product` and `profile` are "" if left open."""

    claim: str
    request: str
    device_class: str
    product: str = ""
    profile: str = ""
    """MIG profile."""
    count: int
    published: int = 0
    """Devices that it selects in the whole cluster. If 0, product and profile are those named by the claim or class."""


class DeviceVerdict(OutputStruct, frozen=True, kw_only=True):
    """Why one device is unsuitable for one request."""

    device: str
    """As driver/pool/device."""
    node: str = ""
    """The node it belongs to; "" if several nodes may reach it."""
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
    """Conditions that must become true after allocation before the pod is bound."""


class ObstacleKind(StrEnum):
    """Why an allocated device cannot be used."""

    NODE_GONE = "NodeGone"
    OUT_OF_REACH = "OutOfReach"
    """The pod has a node that cannot reach it."""
    NODE_NOT_READY = "NodeNotReady"
    DRIVER_SILENT = "DriverSilent"
    """Nothing is published for its pool."""
    NOT_PUBLISHED = "NotPublished"
    """Its pool is published without it."""
    OTHER_BOARD = "OtherBoard"
    """Its name now belongs to another board than the one on which the claim was prepared."""
    GIVEN_TWICE = "GivenTwice"
    """Another claim has it too, or a device of the same hardware."""
    TAINTED = "Tainted"
    """It has a taint that its claim does not tolerate."""
    CONFIGURATION_REFUSED = "ConfigurationRefused"
    """Draco's agent refuses to prepare its configuration."""
    SHARES_REFUSED = "SharesRefused"
    """Draco's agent refuses to prepare its devices: no container could use them together with their limits."""


class UseObstacle(OutputStruct, frozen=True, kw_only=True):
    """Why a pod cannot use a device of its claim; `device` is "" if the whole claim is concerned."""

    kind: ObstacleKind
    claim: str
    device: str = ""
    text: str
    """The obstacle, as the end of a sentence."""
    remedy: str
    """What to do, as an imperative."""


class AllocatedClaim(OutputStruct, frozen=True, kw_only=True):
    """An allocated claim of the pod."""

    claim: str
    devices: list[str] = []
    consumers: list[str] = []
    waiting_for: list[str] = []
    """Binding conditions that are not true yet, as "device: condition"."""
    failed: list[str] = []
    """Binding failure conditions that are true."""
    nodes: str = ""
    """Where its devices are reachable, in words; "" if everywhere."""


class Explanation(OutputStruct, frozen=True, kw_only=True):
    """Why the claims of one pod, or one claim, are or are not allocated. `str` gives one paragraph for an Event."""

    schema: str = SCHEMA
    claims: list[str] = []
    pod: str = ""
    node: str = ""
    """The pod's node; "" if it has none yet."""
    reason: PendingReason
    summary: str = ""
    """One paragraph: the decisive cause, the fix, counts. At most 1000 characters, and 300 in ordinary cases."""
    names_subject: bool = False
    """Whether the summary names the pod or its claim, so that it does not apply to other pods with equal requests."""
    names_group: bool = False
    """Whether it names the pod's group, so that it applies to pods of that group only."""
    fits: bool = False
    """Whether the scheduler could allocate all claims now: some node fits, and no selector fails on a device."""
    fits_on: list[str] = []
    """Nodes on which the claims fit together; the first of `fits_on_total`."""
    fits_on_total: int = 0
    error: str = ""
    """The error that makes the scheduler give up on every node."""
    nodes_total: int = 0
    devices_total: int = 0
    requests: list[RequestExplanation] = []
    nodes: list[NodeCause] = []
    """Why the other nodes do not fit, most useful first."""
    problems: list[Problem] = []
    nearest: list[NearestMiss] = []
    stays: str = ""
    """What would still block if nothing were in use, so waiting does not help. "" if nothing would."""
    unmet: list[UnmetRequest] = []
    """What no node of the cluster could provide, so a new node must."""
    counted_on: str = ""
    """The node that Karpenter wrongly counts on: it ignores that the devices there are tainted, and adds no node."""
    allocated: list[AllocatedClaim] = []
    obstacles: list[UseObstacle] = []
    """Why the pod cannot use what its claims have."""
    room_on: list[str] = []
    """Nodes on which the claims of such a pod would fit if allocated again; the first ones."""
    upstream_bugs: list[str] = []
    """Known bugs of the cluster's scheduler that may change its decision."""
    scheduler: str = ""
    """kube-scheduler's last message about the pod."""
    by_draco: bool = False
    """Whether Draco allocates a waiting claim; kube-scheduler allocates the pod's other claims only after that."""
    ended: str = ""
    """A completed pod that used the claims and still exists: Kubernetes revokes what Draco allocates while it does."""
    group: str = ""
    """The group that the pod starts with, if Draco allocates: "PodGroup default/train"."""
    preemption: str = ""
    """The state of preemption for the pod, if Draco allocates and others have the devices."""
    devices: list[DeviceVerdict] = []
    """Only on request."""

    def __str__(self) -> str:
        return self.summary
