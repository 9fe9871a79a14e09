"""DeviceMaintenance, a request to take devices out of service, and MaintenanceBudget, how many may be out at the same time.

The schemas are in `crds/`, and a test compares the two. Durations are texts such as "2h30m".
"""

from datetime import datetime
from enum import StrEnum
from typing import Final

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import DeviceSelector
from draco.resources.api.meta import Condition, ObjectStruct, TimeWindow, find_condition, is_true
from draco.resources.names import TAINT_MAINTENANCE, DeviceKey, PoolKey


class MaintenancePhase(StrEnum):
    """Phase of a maintenance request, in chronological order."""

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
"""In these phases all devices have been returned, and no more are taken."""


CONDITION_ISOLATED: Final = "Isolated"
CONDITION_READY_FOR_WORK: Final = "ReadyForWork"
CONDITION_WORKED: Final = "Worked"
"""All work Jobs have succeeded: the devices are verified from now on, even if the Jobs are deleted."""
CONDITION_VERIFIED: Final = "Verified"
CONDITION_FAILED: Final = "Failed"
CONDITION_BLOCKED: Final = "Blocked"
"""Jobs of the request cannot be created or do not start; it waits until that is fixed."""
REASON_RETURNING: Final = "Returning"
"""Of Isolated: the devices are being returned, which cannot be cancelled."""
REASON_OTHER_GPU: Final = "OtherGpu"
"""Of ReadyForWork: the device's name now stands for another GPU than when it was isolated."""


class Approval(StrEnum):
    """Who starts a rehearsed request: the operator, or a person who sets `approved`."""

    AUTOMATIC = "Automatic"
    REQUIRED = "Required"


class DrainPolicy(StrEnum):
    """How pods leave the devices: when they finish, by the Eviction API, or finally by a NoExecute taint."""

    WAIT = "Wait"
    EVICT = "Evict"
    NO_EXECUTE = "NoExecute"


class DeadlineAction(StrEnum):
    """What happens if the devices are not free in time: the request fails and keeps them, or returns them."""

    FAIL = "Fail"
    CANCEL = "Cancel"


class VerificationMode(StrEnum):
    """Who verifies the devices: the node's agent, a Job on the device, or the person who finishes."""

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
        """Whether every given name is equal. A selector without names matches nothing."""
        wanted = (self.driver, self.pool, self.device)
        return any(wanted) and all(not want or want == have for want, have in zip(wanted, device, strict=True))

    def may_match(self, pool: PoolKey) -> bool:
        """Whether it may match devices in the pool."""
        return self.driver in {None, "", pool.driver} and self.pool in {None, "", pool.pool}


class MaintenanceTaint(ApiStruct, frozen=True, kw_only=True):
    """The taint that isolates devices; same defaults as the schema."""

    key: str = TAINT_MAINTENANCE
    value: str = ""
    effect: str = "NoSchedule"


class MaintenanceSchedule(ApiStruct, frozen=True, kw_only=True):
    """When devices may be isolated: not before `start`, and only in a window."""

    start: datetime | None = None
    windows: list[TimeWindow] = []


class MaintenanceDrain(ApiStruct, frozen=True, kw_only=True):
    """How pods leave: eviction after `wait`, NoExecute `no_execute_after` the first, with their own grace period or this one."""

    policy: DrainPolicy = DrainPolicy.WAIT
    wait: str = "0m"
    no_execute_after: str = "30m"
    grace_period_seconds: int | None = None


class MaintenanceDeadline(ApiStruct, frozen=True, kw_only=True):
    """How long after their isolation the devices must be free."""

    after: str
    action: DeadlineAction = DeadlineAction.FAIL


class MaintenanceWork(ApiStruct, frozen=True, kw_only=True):
    """A Job for each GPU once it is free: its template is a suspended CronJob in the namespace of Draco's Jobs."""

    from_cron_job: str


class MaintenanceVerification(ApiStruct, frozen=True, kw_only=True):
    """How the devices are verified. `from_cron_job` is for the mode Job."""

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
    """One device of a request. `rule` is the DeviceTaintRule that isolates it; `claims` ("namespace/name") still hold it.

    `uuid` is its GPU at the time of isolation, `overlaps` the requested device if this one only shares its hardware, `watched_by`
    the claims with administrative access.
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
    """The effect on a class: its physical GPUs (or devices), how many are free now, and how many will be."""

    name: str
    devices: int
    free: int
    free_after: int


class MaintenanceRehearsal(ApiStruct, frozen=True, kw_only=True):
    """The effect of isolation and draining, computed in advance. Names are "namespace/name", at most 64."""

    devices: int
    claims: int
    pods: int
    pod_names: list[str] = []
    blocking_budgets: list[str] = []
    classes: list[RehearsedClass] = []


class DeviceMaintenanceStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `isolated_at` is the start of isolation: from then on `devices` is fixed."""

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
    """A request to take devices out of service, while their node and its other devices keep working."""

    spec: DeviceMaintenanceSpec
    status: DeviceMaintenanceStatus = DeviceMaintenanceStatus()

    @property
    def is_to_end(self) -> bool:
        """Whether it was cancelled or deleted."""
        return self.spec.cancelled or self.metadata.deletion_timestamp is not None

    @property
    def is_returning(self) -> bool:
        """Whether its devices are being returned."""
        found = find_condition(self.status.conditions, CONDITION_ISOLATED)
        return found is not None and found.reason == REASON_RETURNING

    def says(self, condition: str) -> bool:
        """Whether the status has this condition with status True."""
        return is_true(self.status.conditions, condition)


class BudgetScope(StrEnum):
    """Whether a budget's limits apply to all its devices together, or per node or NVLink domain."""

    CLUSTER = "Cluster"
    NODE = "Node"
    NVLINK_DOMAIN = "NVLinkDomain"


class MaintenanceBudgetSpec(ApiStruct, frozen=True, kw_only=True):
    """How many physical GPUs (or devices) may be out of service, optionally of one class.

    `max_failed` is the circuit breaker: with more failed requests nothing new starts. `paused` stops everything that takes
    devices out of service.
    """

    device_class_name: str = ""
    per: BudgetScope = BudgetScope.CLUSTER
    max_devices: int | None = None
    max_percent: int | None = None
    max_failed: int | None = None
    paused: bool = False


class MaintenanceBudgetStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `devices` is the number of devices covered, `out_of_service` how many of them are out."""

    observed_generation: int = 0
    devices: int | None = None
    out_of_service: int | None = None
    waiting: int | None = None
    message: str = ""
    conditions: list[Condition] = []


class MaintenanceBudget(ObjectStruct, frozen=True, kw_only=True):
    """How many devices may be out of service. All budgets must be met."""

    spec: MaintenanceBudgetSpec = MaintenanceBudgetSpec()
    status: MaintenanceBudgetStatus = MaintenanceBudgetStatus()
