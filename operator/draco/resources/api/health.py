"""Faults of GPUs as agents report them, and HealthPolicy; its schema is in `crds/`, and a test compares the two."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import DeviceSelector
from draco.resources.api.meta import Condition, LabelSelector, ObjectStruct
from draco.resources.names import TAINT_FAMILIES, TAINT_FOREIGN_INSTANCE, TAINT_UNSETTLED


class FaultFamily(StrEnum):
    """Families of faults, each with its own taint key draco.dev/<family>."""

    XID = "xid"
    ECC = "ecc"
    ROW_REMAP = "row-remap"
    THERMAL = "thermal"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    RECOVERY = "recovery"
    LOST = "lost"
    DRIVER = "driver"
    UNREADABLE = "unreadable"


_FACTS = frozenset({TAINT_FOREIGN_INSTANCE, TAINT_UNSETTLED})
_FAULTS = frozenset(f"{TAINT_FAMILIES}{family.value}" for family in FaultFamily)


def is_of_fault(key: str) -> bool:
    """Whether this taint key reports a hardware fault."""
    return key in _FAULTS


def is_of_fact(key: str) -> bool:
    """Whether this taint key reports something the agent cannot do: a pod that tolerates it would be refused by the agent."""
    return key in _FACTS or is_of_fault(key)


class FaultScope(StrEnum):
    """What a fault affects."""

    COMPUTE_INSTANCE = "ComputeInstance"
    GPU_INSTANCE = "GpuInstance"
    GPU = "Gpu"
    NODE = "Node"


class HealthEffect(StrEnum):
    """The response to a fault, mildest first: recorded, announced, no new claims, pods evicted, pods deleted."""

    RECORD = "Record"
    ANNOUNCE = "Announce"
    NO_SCHEDULE = "NoSchedule"
    EVICT = "Evict"
    NO_EXECUTE = "NoExecute"


HEALTHY: Final = "Healthy"
"""`health` of a GPU without faults."""
BLOCKING_FAULTS: Final = frozenset({HealthEffect.NO_SCHEDULE, HealthEffect.EVICT, HealthEffect.NO_EXECUTE})
"""Effects that keep new claims away."""


class GpuFaultStatus(ApiStruct, frozen=True, kw_only=True):
    """One fault of a GPU, in its agent's ledger.

    `name` is one word, such as Xid79, and unique on the GPU together with `instance`; `code` is the XID, if any. `instance` is
    the GPU instance's id if the scope is smaller than the GPU. A latched fault stays until an action clears it, a live one until
    it is no longer seen. `effect` is its current effect, from `policy` ("": the agent's own table). `clean_probes` counts
    readings without it since it was last seen.
    """

    family: FaultFamily
    name: str
    code: int | None = None
    scope: FaultScope = FaultScope.GPU
    instance: int | None = None
    message: str = ""
    latched: bool = False
    effect: HealthEffect = HealthEffect.RECORD
    policy: str = ""
    count: int = 1
    clean_probes: int = 0
    first_seen: datetime | None = None
    last_seen: datetime | None = None


class FaultOverride(ApiStruct, frozen=True, kw_only=True):
    """A policy's override for one fault of one GPU. Without one the agent's own table applies.

    Without `effect` the agent's own effect stays. `clean_probes` is the number of readings without the fault that ends it.
    """

    uuid: str
    fault: str
    policy: str
    effect: HealthEffect | None = None
    instance: int | None = None
    clean_probes: int | None = None


class Remediation(ApiStruct, frozen=True, kw_only=True):
    """Automatic repair: a DeviceMaintenance with a CronJob's Job. After `max_failures` in a row, a person has to look."""

    from_cron_job: str
    verify_from_cron_job: str = ""
    max_failures: int = 2


class HealthRule(ApiStruct, frozen=True, kw_only=True):
    """The response to faults that match `condition`, plain CEL over `fault` and `gpu`."""

    name: str
    condition: str
    effect: HealthEffect | None = None
    clean_probes: int | None = None
    remediation: Remediation | None = None


class HealthPolicySpec(ApiStruct, frozen=True, kw_only=True):
    """Selected GPUs, and the response to their faults. The first rule that matches a fault applies.

    If several policies select a GPU, the one with the highest `priority` comes first, then the older one. With `dry_run` the
    response is only reported.
    """

    priority: int = 0
    dry_run: bool = False
    node_selector: LabelSelector | None = None
    device_class_name: str = ""
    device_selectors: list[DeviceSelector] = []
    rules: list[HealthRule] = []


class HealthPolicyStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator: selected GPUs, those with a fault that matches a rule, and open requests."""

    observed_generation: int = 0
    gpus: int | None = None
    faulty: int | None = None
    remediating: int | None = None
    message: str = ""
    conditions: list[Condition] = []


class HealthPolicy(ObjectStruct, frozen=True, kw_only=True):
    """The response to faults of selected GPUs."""

    spec: HealthPolicySpec
    status: HealthPolicyStatus = HealthPolicyStatus()
