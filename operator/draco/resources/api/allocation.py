"""AllocationRegister, a kind of draco.dev/v1alpha1: which GPUs only Draco may allocate.

Owns the structs; the schema people meet is in `crds/`, and a test holds the two together. The chart's admission policies read the
same fields.
"""

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectMeta


class AllocationRegisterSpec(ApiStruct, frozen=True, kw_only=True):
    """Names of whole GPUs by pool, whose key is "driver/pool"."""

    pools: dict[str, list[str]] = {}


class AllocationRegisterStatus(ApiStruct, frozen=True, kw_only=True):
    """Counts of what stands in it."""

    gpus: int = 0
    pools: int = 0


class AllocationRegister(ApiStruct, frozen=True, kw_only=True):
    """The one register."""

    metadata: ObjectMeta = ObjectMeta()
    spec: AllocationRegisterSpec = AllocationRegisterSpec()
    status: AllocationRegisterStatus = AllocationRegisterStatus()
