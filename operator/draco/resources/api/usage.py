"""GpuUsage: how much of a node's GPUs is used, and by whom. Its agent writes it, at most every few seconds."""

from datetime import datetime

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectStruct


class DeviceUsage(ApiStruct, frozen=True, kw_only=True):
    """Memory and utilization of a GPU or a MIG device; None: not reported.

    `device` is its published name, "" if it is not published. `gpu` is the UUID of a MIG device's GPU.
    """

    uuid: str
    device: str = ""
    gpu: str = ""
    product_name: str = ""
    profile: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None


class DeviceUser(ApiStruct, frozen=True, kw_only=True):
    """What the processes of one container use of the device `uuid` together; or a claim of it without processes.

    `claim` is a claim's name; "" if the container has none there, or several. `pod` is a UID if its name is unknown. Without a
    pod they are processes outside pods, or of an unknown pod.
    """

    uuid: str
    namespace: str = ""
    claim: str = ""
    pod: str = ""
    container: str = ""
    processes: int = 0
    memory_used_bytes: int | None = None
    utilization_percent: int | None = None


class UnusedDevice(ApiStruct, frozen=True, kw_only=True):
    """A device that a claim holds and nobody has used since then."""

    uuid: str
    namespace: str
    claim: str
    claim_uid: str = msgspec.field(name="claimUID")
    since: datetime


class HeldTime(ApiStruct, frozen=True, kw_only=True):
    """How long the claims of a namespace held devices of one kind on one day (UTC), and used them.

    `resource` is a product name, with the profile of MIG devices. Without it, the rest of a day with very many namespaces.
    """

    day: str
    namespace: str = ""
    resource: str = ""
    held_seconds: int = 0
    used_seconds: int = 0


class GpuUsageStatus(ApiStruct, frozen=True, kw_only=True):
    """The last reading that differed from the one before. `unread` are UUIDs of GPUs that could not be read."""

    time: datetime | None = None
    devices: list[DeviceUsage] = []
    users: list[DeviceUser] = []
    unused: list[UnusedDevice] = []
    held: list[HeldTime] = []
    unread: list[str] = []


class GpuUsage(ObjectStruct, frozen=True, kw_only=True):
    """The usage of one node's GPUs. Named after the Node and owned by it."""

    status: GpuUsageStatus = GpuUsageStatus()
