"""Device taints, tolerations, and DeviceTaintRule, and matching them. Which devices a rule affects needs an inventory."""

from datetime import datetime
from typing import NamedTuple

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import Condition, ObjectStruct
from draco.resources.names import DRACO_DOMAIN, TAINT_MAINTENANCE, TAINT_OPERATOR_ALLOCATED, DeviceKey

EFFECTS = ("NoSchedule", "NoExecute", "None")
BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects that keep new claims away (or new pods, for node taints). All others, None and unknown ones, are informational."""
TAINTS_PER_DEVICE = 4
"""The limit per device in a slice, as older API servers have it."""


class TaintIdentity(NamedTuple):
    """Identity of a taint of a device or node, without its time. `str` writes it as kubectl does."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class DeviceTaint(ApiStruct, frozen=True, kw_only=True):
    """A taint of one device. Effects: None, NoSchedule, NoExecute; an unknown effect acts like None."""

    key: str
    effect: str
    value: str = ""
    time_added: datetime | None = None

    @property
    def identity(self) -> TaintIdentity:
        """The taint without its time."""
        return TaintIdentity(self.key, self.value, self.effect)

    @property
    def sets_aside(self) -> bool:
        """Whether it makes the device unavailable to new claims. The taint of Draco's own devices does not."""
        return self.effect in BLOCKING_EFFECTS and self.key != TAINT_OPERATOR_ALLOCATED

    @property
    def is_of_maintenance(self) -> bool:
        """Whether an agent published it for a DeviceMaintenance. Its other taints follow from what it observes."""
        is_own = self.key.startswith(f"{DRACO_DOMAIN}/") and self.key != TAINT_MAINTENANCE
        return self.effect in BLOCKING_EFFECTS and not is_own


class DeviceToleration(ApiStruct, frozen=True, kw_only=True):
    """What a request tolerates. Operator Exists or Equal (the default); an empty key with Exists matches every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Whether this toleration matches the taint, ignoring time limits."""
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
        """The one device if all fields are set, else None."""
        return DeviceKey(self.driver, self.pool, self.device) if self.driver and self.pool and self.device else None

    def matches(self, device: DeviceKey) -> bool:
        """Whether every set field matches."""
        wanted = (self.driver, self.pool, self.device)
        return all(not want or want == have for want, have in zip(wanted, device, strict=True))


class DeviceTaintRuleSpec(ApiStruct, frozen=True, kw_only=True):
    """One taint for the devices that the selector matches. Without a selector it matches none."""

    taint: DeviceTaint
    device_selector: DeviceTaintSelector | None = None

    @property
    def without_selector(self) -> str:
        """What a rule without a selector does, as the end of a sentence; "" if it has one.

        The API says that it taints nothing; kube-scheduler takes it for a rule for all devices up to 1.37 (kubernetes#141620).
        """
        if self.device_selector is not None:
            return ""
        nothing = "has no spec.deviceSelector, so it taints no device"
        if self.taint.effect not in BLOCKING_EFFECTS:
            return nothing
        return f"{nothing}, but kube-scheduler up to 1.37 keeps new claims off every device (kubernetes#141620)"


class DeviceTaintRuleStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the eviction controller."""

    conditions: list[Condition] = []


class DeviceTaintRule(ObjectStruct, frozen=True, kw_only=True):
    """A taint applied from outside the driver. Served as v1 (1.37), v1beta2 (1.36) or v1alpha3 (1.34, 1.35), all of one shape."""

    spec: DeviceTaintRuleSpec
    status: DeviceTaintRuleStatus = DeviceTaintRuleStatus()
