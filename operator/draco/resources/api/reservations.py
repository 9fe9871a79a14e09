"""DeviceReservation: claims that are there before the pods that use them, for a time.

Owns the structs; the schema people meet is in `crds/`, and a test holds the two together. Durations are texts such as "2h30m".
"""

from datetime import datetime
from typing import Any

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import ResourceClaimSpec
from draco.resources.api.foreign import shallow_value
from draco.resources.api.meta import Condition, ObjectStruct


class ReservationTemplate(ApiStruct, frozen=True, kw_only=True):
    """What each claim asks for, as in a ResourceClaimTemplate."""

    spec: ResourceClaimSpec = ResourceClaimSpec()


class DeviceReservationSpec(ApiStruct, frozen=True, kw_only=True):
    """So many claims of a template that stands here, or has this name in the namespace; and until when.

    `duration` counts from the creation of the reservation. At most one of `duration` and `expires_at` is set; without either it
    lasts until it is deleted. `priority_class_name` is "" for the cluster's default.
    """

    count: int = 1
    template: ReservationTemplate | None = None
    template_name: str = ""
    topology: str = ""
    priority_class_name: str = ""
    duration: str = ""
    expires_at: datetime | None = None


class Takeover(ApiStruct, frozen=True, kw_only=True):
    """The claim of a pod that takes over the devices of the claim `reserved`. `allocation` is what it gets, until it has it."""

    claim: str
    uid: str
    reserved: str
    since: datetime
    allocation: Any = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "allocation", shallow_value(self.allocation))


class UnusedClaim(ApiStruct, frozen=True, kw_only=True):
    """A claim of the reservation that has devices and that no pod uses, since when, and when it loses them."""

    claim: str
    uid: str
    since: datetime
    loses_at: datetime | None = None


class LostClaims(ApiStruct, frozen=True, kw_only=True):
    """The UIDs of claims that the reservation has lost for being unused, as long as its spec is of this generation."""

    generation: int
    claims: list[str]


class DeviceReservationStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator. `reserved` claims have devices, `in_use` of them are used by pods.

    `priority` is the value of its PriorityClass when it was made, and `preemption_policy` what that class says.
    """

    observed_generation: int = 0
    priority: int | None = None
    preemption_policy: str = ""
    reserved: int | None = None
    in_use: int | None = None
    expires_at: datetime | None = None
    message: str = ""
    takeovers: list[Takeover] = []
    idle: list[UnusedClaim] = []
    lost: LostClaims | None = None
    conditions: list[Condition] = []


class DeviceReservation(ObjectStruct, frozen=True, kw_only=True):
    """Devices for pods that are yet to come."""

    spec: DeviceReservationSpec = DeviceReservationSpec()
    status: DeviceReservationStatus = DeviceReservationStatus()
