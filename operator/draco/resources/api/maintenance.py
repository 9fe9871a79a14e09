"""DeviceMaintenance, a request to take devices out of service, and MaintenanceBudget, how much may be out of service at once.

Owns the structs; the schemas people meet are in `crds/`, and a test holds the two together. Durations are texts such as "2h30m".
"""

from datetime import datetime
from enum import StrEnum
from typing import Final

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import DeviceSelector
from draco.resources.api.meta import Condition, ObjectStruct, TimeWindow, find_condition, is_true
from draco.resources.names import TAINT_MAINTENANCE, DeviceKey, PoolKey


class MaintenancePhase(StrEnum):
    """Where a maintenance request stands, in the order in which it comes there."""

    PENDING = "Pending"
    REHEARSED = "Rehearsed"
    ISOLATED = "Isolated"
    DRAINING = "Draining"
    IN_MAINTENANCE = "InMaintenance"
    VERIFYING = "Verifying"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


OVER: Final = frozenset({MaintenancePhase.COMPLETED, MaintenancePhase.CANCELLED})
"""A request in one of these has given everything back, and takes nothing any more."""


CONDITION_ISOLATED: Final = "Isolated"
CONDITION_READY_FOR_WORK: Final = "ReadyForWork"
CONDITION_WORKED: Final = "Worked"
"""All Jobs that do the work have succeeded: from then on the devices are verified, even if somebody deletes the Jobs."""
CONDITION_VERIFIED: Final = "Verified"
CONDITION_FAILED: Final = "Failed"
CONDITION_BLOCKED: Final = "Blocked"
"""Jobs of the request cannot be made, or do not start: it goes no further until that is put right."""
REASON_RETURNING: Final = "Returning"
"""Of Isolated: the devices are being given back, which is not called off any more."""
REASON_OTHER_GPU: Final = "OtherGpu"
"""Of ReadyForWork: the device's name stands for another GPU than when it was isolated."""


class Approval(StrEnum):
    """Who starts a request that is rehearsed: the operator, or a person who sets `approved`."""

    AUTOMATIC = "Automatic"
    REQUIRED = "Required"


class DrainPolicy(StrEnum):
    """How pods leave the devices: when they finish, by the Eviction API, or in the end by a NoExecute taint."""

    WAIT = "Wait"
    EVICT = "Evict"
    NO_EXECUTE = "NoExecute"


class DeadlineAction(StrEnum):
    """What happens to a request whose devices are not free in time: it fails and keeps them, or gives them back."""

    FAIL = "Fail"
    CANCEL = "Cancel"


class VerificationMode(StrEnum):
    """What says that the devices are good again: the node's agent, a Job on the device, or the person who finishes."""

    AGENT = "Agent"
    JOB = "Job"
    PERSON = "Person"


class MaintenanceSelector(ApiStruct, frozen=True, kw_only=True):
    """Devices by exact names, node, class and CEL; fields are ANDed and at least one is set."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    node_name: str | None = None
    device_class_name: str | None = None
    selectors: list[DeviceSelector] = []

    def matches(self, device: DeviceKey) -> bool:
        """Whether every exact name that is set agrees. A selector without any matches nothing."""
        wanted = (self.driver, self.pool, self.device)
        return any(wanted) and all(not want or want == have for want, have in zip(wanted, device, strict=True))

    def may_match(self, pool: PoolKey) -> bool:
        """Whether there may be devices in the pool that it matches."""
        return self.driver in {None, "", pool.driver} and self.pool in {None, "", pool.pool}


class MaintenanceTaint(ApiStruct, frozen=True, kw_only=True):
    """The taint that isolates a request's devices; the schema fills in the same defaults."""

    key: str = TAINT_MAINTENANCE
    value: str = ""
    effect: str = "NoSchedule"


class MaintenanceSchedule(ApiStruct, frozen=True, kw_only=True):
    """When devices may be isolated: not before `start`, and only while a window is open."""

    start: datetime | None = None
    windows: list[TimeWindow] = []


class MaintenanceDrain(ApiStruct, frozen=True, kw_only=True):
    """How pods leave. They have `wait` to finish before they are evicted.

    NoExecute comes `no_execute_after` the first eviction. `grace_period_seconds` replaces the pods' own.
    """

    policy: DrainPolicy = DrainPolicy.WAIT
    wait: str = "0m"
    no_execute_after: str = "30m"
    grace_period_seconds: int | None = None


class MaintenanceDeadline(ApiStruct, frozen=True, kw_only=True):
    """How long after their isolation the devices must be free."""

    after: str
    action: DeadlineAction = DeadlineAction.FAIL


class MaintenanceWork(ApiStruct, frozen=True, kw_only=True):
    """A Job for each GPU as soon as it is free: the template is a suspended CronJob in the namespace of Draco's Jobs."""

    from_cron_job: str


class MaintenanceVerification(ApiStruct, frozen=True, kw_only=True):
    """How it is found out that the devices are good again. `from_cron_job` is for the mode Job."""

    mode: VerificationMode = VerificationMode.AGENT
    from_cron_job: str = ""


class DeviceMaintenanceSpec(ApiStruct, frozen=True, kw_only=True):
    """Which devices to take out of service, why, when and how, and whether the work is finished."""

    device_selector: MaintenanceSelector
    reason: str = ""
    taint: MaintenanceTaint = MaintenanceTaint()
    approval: Approval = Approval.AUTOMATIC
    approved: bool = False
    allow_most_of_class: bool = False
    schedule: MaintenanceSchedule = MaintenanceSchedule()
    drain: MaintenanceDrain = MaintenanceDrain()
    deadline: MaintenanceDeadline | None = None
    work: MaintenanceWork | None = None
    verification: MaintenanceVerification = MaintenanceVerification()
    finished: bool = False
    cancelled: bool = False


class MaintainedDevice(ApiStruct, frozen=True, kw_only=True):
    """One device of a request. `rule` is the DeviceTaintRule that isolates it, `claims` ("namespace/name") still hold it.

    `uuid` is the GPU that it was or was a part of when it was isolated, `overlaps` the device that was asked for if this one is
    the same hardware, `watched_by` the claims that have administrative access to it.
    """

    driver: str
    pool: str
    device: str
    uuid: str = ""
    overlaps: str = ""
    rule: str = ""
    claims: list[str] = []
    watched_by: list[str] = []

    @property
    def key(self) -> DeviceKey:
        """The device's full name."""
        return DeviceKey(self.driver, self.pool, self.device)


class RehearsedClass(ApiStruct, frozen=True, kw_only=True):
    """What a class has left: its physical GPUs (or devices), how many are free now, and how many will be."""

    name: str
    devices: int
    free: int
    free_after: int


class MaintenanceRehearsal(ApiStruct, frozen=True, kw_only=True):
    """What isolating and draining would do, counted before anything is done. Names are "namespace/name", 64 at most."""

    devices: int
    claims: int
    pods: int
    pod_names: list[str] = []
    blocking_budgets: list[str] = []
    classes: list[RehearsedClass] = []


class DeviceMaintenanceStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `isolated_at` is when the first device was to be isolated: from then on `devices` is fixed."""

    phase: MaintenancePhase | None = None
    observed_generation: int = 0
    message: str = ""
    rehearsal: MaintenanceRehearsal | None = None
    devices: list[MaintainedDevice] = []
    device_count: int | None = None
    in_use: int | None = None
    isolated_at: datetime | None = None
    draining_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    conditions: list[Condition] = []


class DeviceMaintenance(ObjectStruct, frozen=True, kw_only=True):
    """A request to take devices out of service one by one, leaving their node and its other devices at work."""

    spec: DeviceMaintenanceSpec
    status: DeviceMaintenanceStatus = DeviceMaintenanceStatus()

    @property
    def is_to_end(self) -> bool:
        """Whether somebody cancelled or deleted it."""
        return self.spec.cancelled or self.metadata.deletion_timestamp is not None

    @property
    def is_returning(self) -> bool:
        """Whether its devices are being given back."""
        found = find_condition(self.status.conditions, CONDITION_ISOLATED)
        return found is not None and found.reason == REASON_RETURNING

    def says(self, condition: str) -> bool:
        """Whether the status has this condition as true."""
        return is_true(self.status.conditions, condition)


class BudgetScope(StrEnum):
    """Of what a budget's limits hold: of all its devices together, or of those of each node or NVLink domain."""

    CLUSTER = "Cluster"
    NODE = "Node"
    NVLINK_DOMAIN = "NVLinkDomain"


class MaintenanceBudgetSpec(ApiStruct, frozen=True, kw_only=True):
    """How many physical GPUs (or devices) may be out of service at once, of one class if it is named.

    `max_failed` is the circuit breaker: with more failed requests than this nothing new is started. `paused` stops everything
    that takes devices out of service.
    """

    device_class_name: str = ""
    per: BudgetScope = BudgetScope.CLUSTER
    max_devices: int | None = None
    max_percent: int | None = None
    max_failed: int | None = None
    paused: bool = False


class MaintenanceBudgetStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `devices` are those that the budget is about, `out_of_service` how many of them are."""

    observed_generation: int = 0
    devices: int | None = None
    out_of_service: int | None = None
    waiting: int | None = None
    message: str = ""
    conditions: list[Condition] = []


class MaintenanceBudget(ObjectStruct, frozen=True, kw_only=True):
    """How much may be out of service at once. All budgets hold together."""

    spec: MaintenanceBudgetSpec = MaintenanceBudgetSpec()
    status: MaintenanceBudgetStatus = MaintenanceBudgetStatus()
