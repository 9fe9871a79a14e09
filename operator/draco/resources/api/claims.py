"""ResourceClaim, ResourceClaimTemplate and DeviceClass (resource.k8s.io/v1). Owns their structs. Decides no allocation."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.foreign import shallow_value
from draco.resources.api.meta import Condition, NodeSelector, ObjectStruct
from draco.resources.api.taints import DeviceTaint, DeviceToleration
from draco.resources.names import DeviceKey

MAX_RESULTS: Final = 32
"""Devices of one claim."""


class CelSelector(ApiStruct, frozen=True, kw_only=True):
    """A CEL expression over `device`."""

    expression: str


class DeviceSelector(ApiStruct, frozen=True, kw_only=True):
    """A selector; CEL is the only kind."""

    cel: CelSelector | None = None


class CapacityRequirements(ApiStruct, frozen=True, kw_only=True):
    """Requested amounts of a shareable device, as quantities."""

    requests: dict[str, str] = {}


class DeviceSubRequest(ApiStruct, frozen=True, kw_only=True):
    """One alternative of a prioritized list."""

    name: str
    device_class_name: str
    selectors: list[DeviceSelector] = []
    allocation_mode: str = "ExactCount"
    count: int = 1
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class ExactDeviceRequest(ApiStruct, frozen=True, kw_only=True):
    """A request for one kind of device. Modes: ExactCount, All."""

    device_class_name: str
    selectors: list[DeviceSelector] = []
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class DeviceRequest(ApiStruct, frozen=True, kw_only=True):
    """`exactly` or `first_available`."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] = []

    @property
    def asked(self) -> Sequence[ExactDeviceRequest | DeviceSubRequest]:
        """The requests for devices, alternatives included."""
        return self.first_available if self.exactly is None else [self.exactly, *self.first_available]

    @property
    def alternatives(self) -> "list[tuple[str, ExactDeviceRequest | DeviceSubRequest]]":
        """What it asks for: each alternative with its name in results."""
        if self.first_available:
            return [(f"{self.name}/{each.name}", each) for each in self.first_available]
        return [] if self.exactly is None else [(self.name, self.exactly)]


class DeviceConstraint(ApiStruct, frozen=True, kw_only=True):
    """Devices of the named requests (all when empty) must agree on, or differ in, an attribute."""

    requests: list[str] = []
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfiguration(ApiStruct, frozen=True, kw_only=True):
    """Parameters for one driver, passed on unchanged."""

    driver: str
    parameters: Any = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "parameters", shallow_value(self.parameters))


class DeviceClaimConfiguration(ApiStruct, frozen=True, kw_only=True):
    """Configuration for the named requests (all when empty)."""

    requests: list[str] = []
    opaque: OpaqueConfiguration | None = None


class DeviceClaim(ApiStruct, frozen=True, kw_only=True):
    """Requests, constraints and configuration."""

    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[DeviceClaimConfiguration] = []


class ResourceClaimSpec(ApiStruct, frozen=True, kw_only=True):
    """Immutable once created."""

    devices: DeviceClaim = DeviceClaim()

    @property
    def asked(self) -> list[ExactDeviceRequest | DeviceSubRequest]:
        """The requests for devices, alternatives included."""
        return [asked for request in self.devices.requests for asked in request.asked]


class DeviceRequestAllocationResult(ApiStruct, frozen=True, kw_only=True):
    """One allocated device. `request` is "name" or "name/subrequest"."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str] = {}

    @property
    def key(self) -> DeviceKey:
        """The device's key."""
        return DeviceKey(self.driver, self.pool, self.device)


class DeviceAllocationConfiguration(ApiStruct, frozen=True, kw_only=True):
    """Configuration at the time of allocation. Source: FromClass, FromClaim."""

    source: str = ""
    requests: list[str] = []
    opaque: OpaqueConfiguration | None = None


class DeviceAllocationResult(ApiStruct, frozen=True, kw_only=True):
    """Devices and their configuration."""

    results: list[DeviceRequestAllocationResult] = []
    config: list[DeviceAllocationConfiguration] = []


class AllocationResult(ApiStruct, frozen=True, kw_only=True):
    """Set and cleared as a whole, never edited in place."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: datetime | None = None


class ResourceClaimConsumerReference(ApiStruct, frozen=True, kw_only=True):
    """A user of the claim: a pod or, since 1.37, a pod group."""

    resource: str
    name: str
    uid: str
    api_group: str = ""

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod, not a PodGroup or another API group's object."""
        return self.resource == "pods" and not self.api_group


class AllocatedDeviceStatus(ApiStruct, frozen=True, kw_only=True):
    """What a driver reports of one allocated device."""

    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: list[Condition] = []
    data: Any = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "data", shallow_value(self.data))

    @property
    def board(self) -> str:
        """The UUID of the reported GPU, as Draco's agent writes it; "" if there is none."""
        said = self.data if isinstance(self.data, dict) else {}
        return str(said.get("parentUUID") or said.get("uuid") or "")


class ResourceClaimStatus(ApiStruct, frozen=True, kw_only=True):
    """Allocation, consumers and device reports."""

    allocation: AllocationResult | None = None
    reserved_for: list[ResourceClaimConsumerReference] = []
    devices: list[AllocatedDeviceStatus] = []


class ResourceClaim(ObjectStruct, frozen=True, kw_only=True):
    """A claim for devices."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def results(self) -> Sequence[DeviceRequestAllocationResult]:
        """The devices of its allocation; empty without one."""
        return self.status.allocation.devices.results if self.status.allocation else ()

    @property
    def devices_held(self) -> list[DeviceKey]:
        """The devices it holds; administrative access holds nothing."""
        return [result.key for result in self.results if not result.admin_access]

    @property
    def devices_watched(self) -> list[DeviceKey]:
        """The devices it has administrative access to."""
        return [result.key for result in self.results if result.admin_access]

    @property
    def waits_tolerantly(self) -> bool:
        """Whether it waits for devices and tolerates some taint, so that it may get a tainted device."""
        return self.waits and any(each.tolerations for each in self._asked)

    def class_of(self, request: str) -> str:
        """The DeviceClass of a request ("name" or "name/subrequest", as in results); "" if there is none."""
        name, _, alternative = request.partition("/")
        for each in self.spec.devices.requests:
            if each.name == name and each.exactly is not None:
                return each.exactly.device_class_name
            if each.name == name:
                return next((one.device_class_name for one in each.first_available if one.name == alternative), "")
        return ""

    def classes_in_spite_of(self, taint: DeviceTaint) -> set[str]:
        """Return the classes of devices that it waits for and would get in spite of this taint."""
        if not self.waits:
            return set()
        return {
            asked.device_class_name
            for asked in self._asked
            if any(toleration.tolerates(taint) for toleration in asked.tolerations)
        }

    @property
    def waits(self) -> bool:
        """Whether it is unallocated and not being deleted."""
        return self.status.allocation is None and self.metadata.deletion_timestamp is None

    @property
    def _asked(self) -> Iterator[ExactDeviceRequest | DeviceSubRequest]:
        """Requests without administrative access, alternatives included."""
        return (each for each in self.spec.asked if not (isinstance(each, ExactDeviceRequest) and each.admin_access))


class ResourceClaimTemplateSpec(ObjectStruct, frozen=True, kw_only=True):
    """Metadata and spec of the claims made from it."""

    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(ObjectStruct, frozen=True, kw_only=True):
    """Makes one claim per pod."""

    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassConfiguration(ApiStruct, frozen=True, kw_only=True):
    """Configuration for every device of the class."""

    opaque: OpaqueConfiguration | None = None


class DeviceClassSpec(ApiStruct, frozen=True, kw_only=True):
    """Selectors are ANDed with the request's own."""

    selectors: list[DeviceSelector] = []
    config: list[DeviceClassConfiguration] = []
    extended_resource_name: str | None = None


class DeviceClass(ObjectStruct, frozen=True, kw_only=True):
    """Mutable; allocated claims keep the configuration of their allocation."""

    spec: DeviceClassSpec = DeviceClassSpec()
