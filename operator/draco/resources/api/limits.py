"""DeviceLimit: how much of the GPUs the claims of namespaces may hold, if Draco allocates, and for how long unused.

Also Namespace, for its labels.
"""

from enum import StrEnum

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import Condition, LabelSelector, ObjectStruct


class LimitScope(StrEnum):
    """Whether the amounts apply to each selected namespace, or to all of them together."""

    NAMESPACE = "Namespace"
    SELECTION = "Selection"


class DeviceAmounts(ApiStruct, frozen=True, kw_only=True):
    """Amounts of devices; None is not limited, or not counted. `memory` and `gpu_share` are quantities."""

    devices: int | None = None
    memory: str | None = None
    memory_slices: int | None = None
    gpu_share: str | None = None


class UnusedLimit(ApiStruct, frozen=True, kw_only=True):
    """For how long devices may be held unused, and how long before their eviction the pods are warned."""

    evict_after: str
    notice: str = "15m"


class DeviceLimitSpec(ApiStruct, frozen=True, kw_only=True):
    """Which claims count (of selected namespaces, or of all without a selector), and which of their devices."""

    namespace_selector: LabelSelector | None = None
    per: LimitScope = LimitScope.NAMESPACE
    device_class_names: list[str] = []
    driver: str = ""
    limits: DeviceAmounts = DeviceAmounts()
    unused: UnusedLimit | None = None


class NamespaceUse(ApiStruct, frozen=True, kw_only=True):
    """What the claims of one namespace hold, as far as it is limited."""

    namespace: str
    used: DeviceAmounts = DeviceAmounts()


class DeviceLimitStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `namespaces` has those nearest to the limit first."""

    observed_generation: int = 0
    selected: int | None = None
    used: DeviceAmounts | None = None
    namespaces: list[NamespaceUse] = []
    waiting: int | None = None
    message: str = ""
    conditions: list[Condition] = []


class DeviceLimit(ObjectStruct, frozen=True, kw_only=True):
    """A limit. All limits that apply must be met."""

    spec: DeviceLimitSpec
    status: DeviceLimitStatus = DeviceLimitStatus()


class Namespace(ObjectStruct, frozen=True, kw_only=True):
    """A namespace, for its labels."""
