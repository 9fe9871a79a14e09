"""DeviceLimit: how much of the GPUs the claims of namespaces may hold, where Draco allocates.

Owns the structs of that kind, and of Namespace, whose labels say which limit is whose.
"""

from enum import StrEnum

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import Condition, LabelSelector, ObjectStruct


class LimitScope(StrEnum):
    """Of what the amounts hold: of each selected namespace individually, or of all of them together."""

    NAMESPACE = "Namespace"
    SELECTION = "Selection"


class DeviceAmounts(ApiStruct, frozen=True, kw_only=True):
    """Amounts of devices; what is None is not limited, or not counted. `memory` and `gpu_share` are quantities."""

    devices: int | None = None
    memory: str | None = None
    memory_slices: int | None = None
    gpu_share: str | None = None


class DeviceLimitSpec(ApiStruct, frozen=True, kw_only=True):
    """Which claims count, those of the selected namespaces (without a selector of all), and which of their devices."""

    namespace_selector: LabelSelector | None = None
    per: LimitScope = LimitScope.NAMESPACE
    device_class_names: list[str] = []
    driver: str = ""
    limits: DeviceAmounts


class NamespaceUse(ApiStruct, frozen=True, kw_only=True):
    """What the claims of one namespace hold of what a limit is about."""

    namespace: str
    used: DeviceAmounts = DeviceAmounts()


class DeviceLimitStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `namespaces` are those nearest to the limit, the nearest first."""

    observed_generation: int = 0
    selected: int | None = None
    used: DeviceAmounts | None = None
    namespaces: list[NamespaceUse] = []
    waiting: int | None = None
    message: str = ""
    conditions: list[Condition] = []


class DeviceLimit(ObjectStruct, frozen=True, kw_only=True):
    """A limit. All that apply hold together."""

    spec: DeviceLimitSpec
    status: DeviceLimitStatus = DeviceLimitStatus()


class Namespace(ObjectStruct, frozen=True, kw_only=True):
    """A namespace, for its labels."""
