"""Device taints, tolerations, and DeviceTaintRule.

Owns their structs, how a taint is written, the matching of one toleration against one taint, and of one selector against one
device. Does not know which devices a rule hits: that needs an inventory.
"""

from datetime import datetime
from typing import NamedTuple

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import Condition, ObjectStruct
from draco.resources.names import TAINT_OPERATOR_ALLOCATED, DeviceKey

EFFECTS = ("NoSchedule", "NoExecute", "None")
"""What a device taint can do, as far as is known."""
BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects that keep new claims away (and of a node's taints, new pods). Any other one, None and those unknown included, is only a
note."""
TAINTS_PER_DEVICE = 4
"""A slice has no more of them for a device: older API servers take no more."""


class TaintIdentity(NamedTuple):
    """What makes two taints of a device or a node the same, whenever they were added. `str` writes it as kubectl does."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class DeviceTaint(ApiStruct, frozen=True, kw_only=True):
    """A taint on one device. Effects: None, NoSchedule, NoExecute; an unknown effect acts like None."""

    key: str
    effect: str
    value: str = ""
    time_added: datetime | None = None

    @property
    def identity(self) -> TaintIdentity:
        """All of it but when it was added."""
        return TaintIdentity(self.key, self.value, self.effect)

    @property
    def sets_aside(self) -> bool:
        """Whether it keeps new claims off. That a device is Draco's to allocate, which a taint says as well, keeps none off."""
        return self.effect in BLOCKING_EFFECTS and self.key != TAINT_OPERATOR_ALLOCATED


class DeviceToleration(ApiStruct, frozen=True, kw_only=True):
    """What a request tolerates. Operator Exists or Equal (the default); an empty key with Exists matches every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Whether this toleration covers the taint, time limits left aside."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


class DeviceTaintSelector(ApiStruct, frozen=True, kw_only=True):
    """Fields are ANDed; an empty selector matches every device of the cluster."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None

    @property
    def named(self) -> DeviceKey | None:
        """The one device that it names in full."""
        return DeviceKey(self.driver, self.pool, self.device) if self.driver and self.pool and self.device else None

    def matches(self, device: DeviceKey) -> bool:
        """Whether every field that is set agrees."""
        wanted = (self.driver, self.pool, self.device)
        return all(not want or want == have for want, have in zip(wanted, device, strict=True))


class DeviceTaintRuleSpec(ApiStruct, frozen=True, kw_only=True):
    """One taint for what the selector matches. A missing selector matches nothing."""

    taint: DeviceTaint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRuleStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the eviction controller."""

    conditions: list[Condition] = []


class DeviceTaintRule(ObjectStruct, frozen=True, kw_only=True):
    """A taint applied from outside the driver. Served as v1 (1.37), v1beta2 (1.36) or v1alpha3 (1.34, 1.35), all of one shape."""

    spec: DeviceTaintRuleSpec
    status: DeviceTaintRuleStatus = DeviceTaintRuleStatus()
