"""The schema of `draco status -o json`, which the screen uses too. Fields are only added under one schema name."""

from enum import StrEnum

from draco.resources.api.base import OutputStruct
from draco.resources.names import DeviceKey

SCHEMA = "draco.dev/status/v1"


class DeviceState(StrEnum):
    """Why a new claim cannot have the device, the strongest reason first; `free` if it can."""

    MAINTENANCE = "maintenance"
    UNHEALTHY = "unhealthy"
    OFFLINE = "offline"
    """Its node is missing or not ready, or is cordoned and no other reason applies."""
    TAINTED = "tainted"
    IN_USE = "in use"
    BLOCKED = "blocked"
    """Others use what it draws from, such as the memory of its GPU."""
    FREE = "free"


class ClaimState(StrEnum):
    """A claim's progress."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DELETING = "deleting"


class DeviceCounts(OutputStruct, frozen=True, kw_only=True):
    """Devices by state. Each device has exactly one state, so the counts add up to `total`."""

    total: int = 0
    free: int = 0
    in_use: int = 0
    blocked: int = 0
    tainted: int = 0
    unhealthy: int = 0
    offline: int = 0
    maintenance: int = 0

    def of(self, state: DeviceState) -> int:
        """The number of devices in one state."""
        number: int = getattr(self, state.name.lower())
        return number


class ClaimCounts(OutputStruct, frozen=True, kw_only=True):
    """Claims by state. `unused` are pending claims that no pod waits for, so nothing will allocate them."""

    total: int = 0
    pending: int = 0
    unused: int = 0
    allocated: int = 0
    reserved: int = 0
    deleting: int = 0


class DeviceView(OutputStruct, frozen=True, kw_only=True):
    """One device. `taints` are "key:effect" or "key=value:effect"; `claims` hold it, `maintenance` is its request.

    `claims_on_parts` hold partitions of it. `maintenance_phase` is the phase of that request.
    """

    driver: str
    pool: str
    device: str
    node: str
    product: str
    state: DeviceState
    claims: list[str] = []
    claims_on_parts: list[str] = []
    taints: list[str] = []
    maintenance: str = ""
    maintenance_phase: str = ""
    health: str = ""
    message: str = ""

    @property
    def key(self) -> DeviceKey:
        """The device's full name."""
        return DeviceKey(self.driver, self.pool, self.device)


class NodeView(OutputStruct, frozen=True, kw_only=True):
    """One node with devices. The name is "" for devices that belong to no single node.

    `gpus` is the number of GPUs that its agent reports, None without an agent; `agent` says why the agent does not work, "" if it
    does.
    """

    name: str
    ready: bool
    schedulable: bool
    devices: DeviceCounts
    gpus: int | None = None
    agent: str = ""


class ClaimView(OutputStruct, frozen=True, kw_only=True):
    """One claim: the full names of its `devices`, the `consumers` it is reserved for, the pods `waiting` for it."""

    namespace: str
    name: str
    state: ClaimState
    devices: list[str] = []
    consumers: list[str] = []
    waiting: list[str] = []


class RuleView(OutputStruct, frozen=True, kw_only=True):
    """One DeviceTaintRule and what it hits now, including the same hardware where Draco extends it.

    `extends` names the rule that this one extends, `maintenance` the DeviceMaintenance that owns it. `pods` use the claims;
    `evicted` are those that the effect NoExecute deletes or would delete, `budgets` the PodDisruptionBudgets that this violates
    (none for NoSchedule). `message` says it in sentences.
    """

    name: str
    taint: str
    selector: str
    devices: list[str] = []
    claims: list[str] = []
    pods: list[str] = []
    evicted: list[str] = []
    budgets: list[str] = []
    message: str = ""
    extends: str = ""
    maintenance: str = ""


class MaintainedView(OutputStruct, frozen=True, kw_only=True):
    """One device of a DeviceMaintenance. `same_hardware_as`: the requested device that this one is included for."""

    device: str
    uuid: str = ""
    same_hardware_as: str = ""
    claims: list[str] = []
    watched_by: list[str] = []


class ConditionView(OutputStruct, frozen=True, kw_only=True):
    """One condition of an object."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class MaintenanceView(OutputStruct, frozen=True, kw_only=True):
    """One DeviceMaintenance. `claims` still hold its devices (`devices` are only some of many), and `pods` use the claims.

    `since` is when it entered its phase, as far as known. `waits_for` says briefly what must happen, `next_steps` what a person
    can do, with commands.
    """

    name: str
    phase: str
    reason: str
    message: str
    devices: list[str] = []
    device_count: int = 0
    in_use: int = 0
    claims: list[str] = []
    pods: list[str] = []
    since: str = ""
    waits_for: str = ""
    next_steps: list[str] = []
    details: list[MaintainedView] = []
    conditions: list[ConditionView] = []


class BudgetView(OutputStruct, frozen=True, kw_only=True):
    """One MaintenanceBudget. `waiting` counts the requests that it delays."""

    name: str
    limit: str
    paused: bool = False
    devices: int = 0
    out_of_service: int = 0
    waiting: int = 0
    message: str = ""


class PolicyView(OutputStruct, frozen=True, kw_only=True):
    """One MigPolicy, with the operator's counts of its GPUs by state."""

    name: str
    mode: str
    layout: str = ""
    gpus: int = 0
    applied: int = 0
    changing: int = 0
    failed: int = 0
    message: str = ""


class SharingView(OutputStruct, frozen=True, kw_only=True):
    """One SharingPolicy, with the operator's counts of its GPUs by state."""

    name: str
    mode: str
    gpus: int = 0
    shared: int = 0
    waiting: int = 0
    failed: int = 0
    message: str = ""


class LimitView(OutputStruct, frozen=True, kw_only=True):
    """One DeviceLimit. `used` is the use of namespace `nearest`, or of all namespaces together if that is ""."""

    name: str
    per: str
    namespaces: int = 0
    nearest: str = ""
    used: str = ""
    waiting: int = 0
    message: str = ""


class ReservationView(OutputStruct, frozen=True, kw_only=True):
    """One DeviceReservation. `reserved` of its claims have devices, and pods use `in_use` of these."""

    namespace: str
    name: str
    count: int
    reserved: int = 0
    in_use: int = 0
    expires_at: str = ""
    message: str = ""


class MissingView(OutputStruct, frozen=True, kw_only=True):
    """A feature that the cluster lacks, the consequence, and the remedy."""

    name: str
    consequence: str
    remedy: str


class ClusterStatus(OutputStruct, frozen=True, kw_only=True):
    """The whole document."""

    schema: str = SCHEMA
    server: str = ""
    namespace: str = ""
    """The namespace that the list and the counts of claims are narrowed to; "" for all."""
    devices: DeviceCounts
    claims: ClaimCounts
    nodes: list[NodeView]
    device_list: list[DeviceView]
    claim_list: list[ClaimView]
    taint_rules: list[RuleView]
    maintenance: list[MaintenanceView]
    budgets: list[BudgetView] = []
    mig_policies: list[PolicyView] = []
    sharing_policies: list[SharingView] = []
    limits: list[LimitView] = []
    reservations: list[ReservationView] = []
    """Narrowed to `namespace`, like the claims."""
    missing: list[MissingView]
    warnings: list[str]
