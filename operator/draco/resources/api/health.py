"""Faults of GPUs as agents report them, and HealthPolicy, what is done about them.

Owns the structs; the schemas people meet are in `crds/`, and a test holds the two together.
"""

from datetime import datetime
from enum import StrEnum
from typing import Final

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import DeviceSelector
from draco.resources.api.meta import Condition, LabelSelector, ObjectStruct
from draco.resources.names import TAINT_FAMILIES, TAINT_FOREIGN_INSTANCE, TAINT_UNSETTLED


class FaultFamily(StrEnum):
    """What kind of fault it is. Each family has a taint key of its own, draco.dev/<family>."""

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
    """Whether a taint of this key says that the hardware has a fault; each family of faults has its own."""
    return key in _FAULTS


def is_of_fact(key: str) -> bool:
    """Whether a taint of this key says what the agent cannot do: who tolerates it gets a device that the pod is refused."""
    return key in _FACTS or is_of_fault(key)


class FaultScope(StrEnum):
    """What a fault concerns."""

    COMPUTE_INSTANCE = "ComputeInstance"
    GPU_INSTANCE = "GpuInstance"
    GPU = "Gpu"
    NODE = "Node"


class HealthEffect(StrEnum):
    """What is done about a fault, the mildest first: noted, announced, no new claims, pods evicted, pods deleted."""

    RECORD = "Record"
    ANNOUNCE = "Announce"
    NO_SCHEDULE = "NoSchedule"
    EVICT = "Evict"
    NO_EXECUTE = "NoExecute"


HEALTHY: Final = "Healthy"
"""What a GPU's `health` says where nothing is wrong with it."""
BLOCKING_FAULTS: Final = frozenset({HealthEffect.NO_SCHEDULE, HealthEffect.EVICT, HealthEffect.NO_EXECUTE})
"""What keeps new work away."""


class GpuFaultStatus(ApiStruct, frozen=True, kw_only=True):
    """One fault of a GPU, in its agent's ledger.

    `name` is one word for machines, such as Xid79, and with `instance` unique on the GPU; `code` is the XID where it is one.
    `instance` is the GPU instance's id where the scope is smaller than the GPU. A latched fault stays until something was done, a
    live one until it is not seen any more. `effect` is what the agent makes of it now, `policy` who says so ("" for the agent's
    own table). `clean_probes` counts readings without it since it was last seen.
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
    """What a policy makes of one fault of one GPU. The agent's own table holds where there is none.

    Without `effect` the agent's own effect stays. `clean_probes` is how many readings without the fault end it.
    """

    uuid: str
    fault: str
    policy: str
    effect: HealthEffect | None = None
    instance: int | None = None
    clean_probes: int | None = None


class Remediation(ApiStruct, frozen=True, kw_only=True):
    """What repairs a GPU automatically: a DeviceMaintenance whose work is a Job, made from a suspended CronJob.

    `max_failures` is after how many failed ones in a row a person has to look.
    """

    from_cron_job: str
    verify_from_cron_job: str = ""
    max_failures: int = 2


class HealthRule(ApiStruct, frozen=True, kw_only=True):
    """What is done about the faults that `condition` is true of; plain CEL over `fault` and `gpu`."""

    name: str
    condition: str
    effect: HealthEffect | None = None
    clean_probes: int | None = None
    remediation: Remediation | None = None


class HealthPolicySpec(ApiStruct, frozen=True, kw_only=True):
    """Which GPUs, and what is done about their faults. The first rule that is true of a fault counts.

    Of several policies that select a GPU, the one with the highest `priority` is asked first, then the older one. With `dry_run`
    it is only said what would be done.
    """

    priority: int = 0
    dry_run: bool = False
    node_selector: LabelSelector | None = None
    device_class_name: str = ""
    device_selectors: list[DeviceSelector] = []
    rules: list[HealthRule] = []


class HealthPolicyStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator: the GPUs that it selects, those with a fault that a rule is about, and requests it has open."""

    observed_generation: int = 0
    gpus: int | None = None
    faulty: int | None = None
    remediating: int | None = None
    message: str = ""
    conditions: list[Condition] = []


class HealthPolicy(ObjectStruct, frozen=True, kw_only=True):
    """What is done about faults of some GPUs."""

    spec: HealthPolicySpec
    status: HealthPolicyStatus = HealthPolicyStatus()
