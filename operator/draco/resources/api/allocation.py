"""AllocationRegister: the GPUs that only Draco may allocate, and its leading operator. The chart's policies read it."""

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectStruct


class RegisteredLeader(ApiStruct, frozen=True, kw_only=True):
    """The operator that allocates these GPUs: its identity in the Lease, and its pod, if it runs in one."""

    identity: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")


class AllocationRegisterSpec(ApiStruct, frozen=True, kw_only=True):
    """Names of whole GPUs by pool (key "driver/pool"), and the operator that allocates them."""

    pools: dict[str, list[str]] = {}
    leader: RegisteredLeader | None = None


class AllocationRegisterStatus(ApiStruct, frozen=True, kw_only=True):
    """Number of registered GPUs and pools."""

    gpus: int = 0
    pools: int = 0


class AllocationRegister(ObjectStruct, frozen=True, kw_only=True):
    """The register, a singleton."""

    spec: AllocationRegisterSpec = AllocationRegisterSpec()
    status: AllocationRegisterStatus = AllocationRegisterStatus()
