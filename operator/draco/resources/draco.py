"""Draco's own kinds, draco.dev/v1alpha1.

Owns the structs; the schemas people meet are in `crds/`, and a test holds the two together.
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from draco.resources.base import ApiStruct
from draco.resources.meta import Condition, ObjectMeta
from draco.resources.names import TAINT_MAINTENANCE, DeviceKey


class GpuStatus(ApiStruct, frozen=True, kw_only=True):
    """One physical GPU as its agent sees it. `device` is the name it is published under."""

    device: str
    uuid: str
    product_name: str = ""
    architecture: str = ""
    memory: str = ""
    minor: int = 0
    pci_bus_id: str = msgspec.field(default="", name="pciBusID")
    numa_node: int | None = None
    health: str = "Unknown"
    message: str = ""


class GpuNodeSpec(ApiStruct, frozen=True, kw_only=True):
    """What the operator wants of the node. Layouts come with the MIG work; empty until then."""


class GpuNodeStatus(ApiStruct, frozen=True, kw_only=True):
    """What the agent sees and does."""

    observed_generation: int = 0
    driver: str = ""
    agent_version: str = ""
    driver_version: str = ""
    cuda_driver_version: str = ""
    pool_generation: int = 0
    prepared_claims: int | None = None
    gpu_count: int | None = None
    gpus: list[GpuStatus] = []
    conditions: list[Condition] = []


class GpuNode(ApiStruct, frozen=True, kw_only=True):
    """A node with GPUs. Named after the Node and owned by it; its agent writes the status."""

    metadata: ObjectMeta = ObjectMeta()
    spec: GpuNodeSpec = GpuNodeSpec()
    status: GpuNodeStatus = GpuNodeStatus()


class MaintenancePhase(StrEnum):
    """Where a maintenance request stands."""

    PENDING = "Pending"
    ISOLATED = "Isolated"
    IN_MAINTENANCE = "InMaintenance"
    COMPLETED = "Completed"


class MaintenanceSelector(ApiStruct, frozen=True, kw_only=True):
    """Devices by exact names; fields are ANDed and at least one is set."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None

    def matches(self, device: DeviceKey) -> bool:
        """Whether every field that is set agrees. A selector without any field matches nothing."""
        wanted = (self.driver, self.pool, self.device)
        return any(wanted) and all(not want or want == have for want, have in zip(wanted, device, strict=True))


class MaintenanceTaint(ApiStruct, frozen=True, kw_only=True):
    """The taint that isolates a request's devices; the schema fills in the same defaults."""

    key: str = TAINT_MAINTENANCE
    value: str = ""
    effect: str = "NoSchedule"


class DeviceMaintenanceSpec(ApiStruct, frozen=True, kw_only=True):
    """Which devices to take out of service, why, and whether the work is finished."""

    device_selector: MaintenanceSelector
    reason: str = ""
    taint: MaintenanceTaint = MaintenanceTaint()
    finished: bool = False


class MaintainedDevice(ApiStruct, frozen=True, kw_only=True):
    """One device of a request. `rule` is the DeviceTaintRule that isolates it, `claims` ("namespace/name") still hold it."""

    driver: str
    pool: str
    device: str
    rule: str = ""
    claims: list[str] = []


class DeviceMaintenanceStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator."""

    phase: MaintenancePhase | None = None
    observed_generation: int = 0
    message: str = ""
    devices: list[MaintainedDevice] = []
    device_count: int | None = None
    in_use: int | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    conditions: list[Condition] = []


class DeviceMaintenance(ApiStruct, frozen=True, kw_only=True):
    """A request to take devices out of service one by one, leaving their node and its other devices at work."""

    spec: DeviceMaintenanceSpec
    metadata: ObjectMeta = ObjectMeta()
    status: DeviceMaintenanceStatus = DeviceMaintenanceStatus()
