"""The schema of `draco status -o json`, which the screen prints too.

Owns the structs and their field names: fields are only ever added under one schema name. Computes nothing.
"""

from enum import StrEnum

from draco.resources.api.base import OutputStruct
from draco.resources.names import DeviceKey

SCHEMA = "draco.dev/status/v1"
"""Name of the JSON document. Fields are only ever added under one name."""


class DeviceState(StrEnum):
    """Why a new claim cannot have the device, the strongest reason first; `free` when it can."""

    MAINTENANCE = "maintenance"
    UNHEALTHY = "unhealthy"
    OFFLINE = "offline"
    """Its node is not there or not ready; or it is cordoned, and nothing else is in the way."""
    TAINTED = "tainted"
    IN_USE = "in use"
    BLOCKED = "blocked"
    """Others use up what it draws from, such as the memory of a GPU of which it is a partition."""
    FREE = "free"


class ClaimState(StrEnum):
    """How far a claim has come."""

    PENDING = "pending"
    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DELETING = "deleting"


class DeviceCounts(OutputStruct, frozen=True, kw_only=True):
    """Devices by state. Every device is in exactly one state, so the states add up to `total`."""

    total: int = 0
    free: int = 0
    in_use: int = 0
    blocked: int = 0
    tainted: int = 0
    unhealthy: int = 0
    offline: int = 0
    maintenance: int = 0

    def of(self, state: DeviceState) -> int:
        """Those in one state."""
        number: int = getattr(self, state.name.lower())
        return number


class ClaimCounts(OutputStruct, frozen=True, kw_only=True):
    """Claims by state. `unused` are those of the pending ones that no pod waits for: nothing will allocate them."""

    total: int = 0
    pending: int = 0
    unused: int = 0
    allocated: int = 0
    reserved: int = 0
    deleting: int = 0


class DeviceView(OutputStruct, frozen=True, kw_only=True):
    """One device. `taints` reads "key:effect" or "key=value:effect"; `claims` and `maintenance` name who holds it.

    `claims_on_parts` hold partitions of it. `maintenance_phase` is where that request stands.
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

    `gpus` is how many GPUs Draco's agent there has reported, None where there is none; `agent` is why it does not do its work,
    "" where it does.
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
    """One DeviceTaintRule and what it hits now, what is the same hardware included where Draco extends it.

    `extends` names the rule that this one extends, `maintenance` the DeviceMaintenance that it belongs to. `pods` use the claims;
    `evicted` are those of them that the effect NoExecute deletes or would delete, `budgets` the PodDisruptionBudgets that allow
    fewer (none for NoSchedule, which deletes nothing). `message` says it in sentences.
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
    """One device of a DeviceMaintenance. `same_hardware_as` is the device that was asked for, where this one was not."""

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
    """One DeviceMaintenance. `claims` still hold its devices (of many, `devices` are some), and `pods` use these.

    `since` is when it came to its phase, as far as is known. `waits_for` says in a few words what has to happen, `next_steps`
    what a person can do, with the commands.
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
    """One MaintenanceBudget. `waiting` are the requests that it holds up."""

    name: str
    limit: str
    paused: bool = False
    devices: int = 0
    out_of_service: int = 0
    waiting: int = 0
    message: str = ""


class PolicyView(OutputStruct, frozen=True, kw_only=True):
    """One MigPolicy and, as the operator says it, how many GPUs it has and how many of them are as wanted."""

    name: str
    mode: str
    layout: str = ""
    gpus: int = 0
    applied: int = 0
    changing: int = 0
    failed: int = 0
    message: str = ""


class LimitView(OutputStruct, frozen=True, kw_only=True):
    """One DeviceLimit. `used` is what `nearest` has of what is permitted, or where that is "" all namespaces together."""

    name: str
    per: str
    namespaces: int = 0
    nearest: str = ""
    used: str = ""
    waiting: int = 0
    message: str = ""


class ReservationView(OutputStruct, frozen=True, kw_only=True):
    """One DeviceReservation. `reserved` of its claims have devices, `in_use` of these are used by pods."""

    namespace: str
    name: str
    count: int
    reserved: int = 0
    in_use: int = 0
    expires_at: str = ""
    message: str = ""


class MissingView(OutputStruct, frozen=True, kw_only=True):
    """A feature the cluster lacks, what follows, and what to do."""

    name: str
    consequence: str
    remedy: str


class ClusterStatus(OutputStruct, frozen=True, kw_only=True):
    """Everything on the screen."""

    schema: str = SCHEMA
    server: str = ""
    namespace: str = ""
    """The namespace to which the list and the counts of claims are narrowed; "" for all."""
    devices: DeviceCounts
    claims: ClaimCounts
    nodes: list[NodeView]
    device_list: list[DeviceView]
    claim_list: list[ClaimView]
    taint_rules: list[RuleView]
    maintenance: list[MaintenanceView]
    budgets: list[BudgetView] = []
    mig_policies: list[PolicyView] = []
    limits: list[LimitView] = []
    reservations: list[ReservationView] = []
    """Of `namespace`, like the claims."""
    missing: list[MissingView]
    warnings: list[str]
