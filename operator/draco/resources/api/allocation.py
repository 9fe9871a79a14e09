"""AllocationRegister, a kind of draco.dev/v1alpha1: which GPUs only Draco may allocate, and which operator of Draco's.

Owns the structs; the schema people meet is in `crds/`, and a test holds the two together. The chart's admission policies read the
same fields.
"""

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectStruct


class RegisteredLeader(ApiStruct, frozen=True, kw_only=True):
    """The operator that gives these GPUs out: as holder of its Lease, and by the pod that it runs in, if it runs in one."""

    identity: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")


class AllocationRegisterSpec(ApiStruct, frozen=True, kw_only=True):
    """Names of whole GPUs by pool, whose key is "driver/pool", and who gives them out."""

    pools: dict[str, list[str]] = {}
    leader: RegisteredLeader | None = None


class AllocationRegisterStatus(ApiStruct, frozen=True, kw_only=True):
    """Counts of what stands in it."""

    gpus: int = 0
    pools: int = 0


class AllocationRegister(ObjectStruct, frozen=True, kw_only=True):
    """The one register."""

    spec: AllocationRegisterSpec = AllocationRegisterSpec()
    status: AllocationRegisterStatus = AllocationRegisterStatus()
