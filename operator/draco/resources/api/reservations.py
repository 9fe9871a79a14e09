"""DeviceReservation: claims made in advance for future pods, for a limited time.

The schema is in `crds/`, and a test compares the two. Durations are texts such as "2h30m".
"""

from datetime import datetime
from typing import Any

import msgspec

from draco.resources.api.base import ApiStruct
from draco.resources.api.claims import ResourceClaimSpec
from draco.resources.api.foreign import shallow_value
from draco.resources.api.meta import Condition, ObjectStruct


class ReservationTemplate(ApiStruct, frozen=True, kw_only=True):
    """The spec of each claim, as in a ResourceClaimTemplate."""

    spec: ResourceClaimSpec = ResourceClaimSpec()


class DeviceReservationSpec(ApiStruct, frozen=True, kw_only=True):
    """The number of claims, their template (inline or by name in the namespace), and their end.

    `duration` counts from the reservation's creation. At most one of `duration` and `expires_at` is set; without either it lasts
    until it is deleted. `priority_class_name` is "" for the cluster's default.
    """

    count: int = 1
    template: ReservationTemplate | None = None
    template_name: str = ""
    topology: str = ""
    priority_class_name: str = ""
    duration: str = ""
    expires_at: datetime | None = None


class Takeover(ApiStruct, frozen=True, kw_only=True):
    """The claim of a pod that takes over the devices of the claim `reserved`. `allocation` is kept until it has them."""

    claim: str
    uid: str
    reserved: str
    since: datetime
    allocation: Any = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "allocation", shallow_value(self.allocation))


class UnusedClaim(ApiStruct, frozen=True, kw_only=True):
    """An allocated claim without pods: since when, and when it loses its devices."""

    claim: str
    uid: str
    since: datetime
    loses_at: datetime | None = None


class LostClaims(ApiStruct, frozen=True, kw_only=True):
    """The UIDs of claims lost for being unused, valid for this generation of the spec."""

    generation: int
    claims: list[str]


class DeviceReservationStatus(ApiStruct, frozen=True, kw_only=True):
    """Written by the operator: `reserved` claims have devices, `in_use` have pods. The priority is that of its creation."""

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
    """Devices reserved for future pods."""

    spec: DeviceReservationSpec = DeviceReservationSpec()
    status: DeviceReservationStatus = DeviceReservationStatus()
