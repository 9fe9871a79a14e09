"""Answers the admission webhook for Draco's own kinds: warns about problems on write.

Owns which problems are visible from the object and the DeviceClasses alone. They are those that the object's status would report
a moment later, in the same words. Never denies: an invalid object is stored, and does nothing until it is fixed.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from draco.controller.webhook.admission_review import MOST_WARNINGS, ReviewOutcome, answer_to, changes_spec, read_review
from draco.health.policy import ready
from draco.kube.clock import Clock
from draco.limits.status import class_remarks
from draco.maintenance.budgets.status import no_class
from draco.maintenance.gate import schedule_problem
from draco.maintenance.selecting.selectors import test_of
from draco.mig_policy.matching import rules_of
from draco.reservations.validity import is_expired, problem_of
from draco.resources.api.claims import DeviceClass
from draco.resources.api.draco import MigPolicy
from draco.resources.api.foreign import read
from draco.resources.api.health import HealthPolicy
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceBudget
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.sharing import SharingPolicy
from draco.resources.errors import DracoError
from draco.resources.kinds import (
    DEVICE_LIMITS,
    DEVICE_MAINTENANCES,
    DEVICE_RESERVATIONS,
    HEALTH_POLICIES,
    MAINTENANCE_BUDGETS,
    MIG_POLICIES,
    SHARING_POLICIES,
    Kind,
)
from draco.sharing.decide import sharing_rules

log = structlog.get_logger(__name__)

Classes = Callable[[], Mapping[str, DeviceClass]]


class OwnKindAdvice:
    """Reviews Draco's own kinds. `classes` are the current DeviceClasses."""

    def __init__(self, classes: Classes, *, clock: Clock) -> None:
        self._classes = classes
        self._clock = clock

    async def review(self, body: bytes) -> tuple[bytes, ReviewOutcome]:
        """The answer to an AdmissionReview. Raises NotAReview."""
        request = read_review(body)
        kind, advise = _ADVICE.get(request.kind.kind, (None, None))
        if kind is None or advise is None or not changes_spec(request):
            return answer_to(request, []), ReviewOutcome.UNSEEN
        try:
            written = read(msgspec.json.Decoder(kind.type), request.object)
            said = list(advise(written, self._classes(), self._clock.now()))
        except (msgspec.DecodeError, DracoError) as error:
            log.warning("admission.unreadable", kind=request.kind.kind, name=request.name, error=str(error))
            return answer_to(request, []), ReviewOutcome.UNSEEN
        warnings = said[:MOST_WARNINGS]
        return answer_to(request, warnings), ReviewOutcome.WARNED if said else ReviewOutcome.CLEAN


def _of_maintenance(request: DeviceMaintenance, classes: Mapping[str, DeviceClass], now: datetime) -> Iterator[str]:
    if problem := test_of(request.spec.device_selector, classes).problem:
        yield problem.message
    if said := schedule_problem(request):
        yield said
    start = request.spec.schedule.start
    if start is not None and start < now and not request.status.phase:
        start = start.astimezone(UTC)
        yield f"spec.schedule.start is in the past ({start:%Y-%m-%dT%H:%M:%SZ}): it begins as soon as nothing else holds it up."


def _of_budget(budget: MaintenanceBudget, classes: Mapping[str, DeviceClass], _: datetime) -> Iterator[str]:
    spec = budget.spec
    if 0 in {spec.max_devices, spec.max_percent}:
        yield "Nothing can be taken out of service under this budget; to stop for a while, set spec.paused instead."
    limits = (spec.max_devices, spec.max_percent, spec.max_failed)
    if not spec.paused and all(each is None for each in limits):
        yield "This budget limits nothing: give spec.maxDevices, spec.maxPercent or spec.maxFailed."
    if (name := spec.device_class_name) and name not in classes:
        yield no_class(name)


def _of_health_policy(policy: HealthPolicy, classes: Mapping[str, DeviceClass], _: datetime) -> Iterator[str]:
    if problem := ready(policy, classes.get(policy.spec.device_class_name or "")).problem:
        yield problem


def _of_mig_policy(policy: MigPolicy, _: Mapping[str, DeviceClass], __: datetime) -> Iterator[str]:
    if problem := rules_of(policy).problem:
        yield problem


def _of_sharing_policy(policy: SharingPolicy, _: Mapping[str, DeviceClass], __: datetime) -> Iterator[str]:
    if problem := sharing_rules(policy).problem:
        yield problem


def _of_limit(limit: DeviceLimit, classes: Mapping[str, DeviceClass], _: datetime) -> Iterator[str]:
    yield from class_remarks(limit.spec.device_class_names, classes)


def _of_reservation(reservation: DeviceReservation, classes: Mapping[str, DeviceClass], now: datetime) -> Iterator[str]:
    if reservation.spec.template and (problem := problem_of(reservation.spec.template.spec, classes)):
        yield problem.message
    if is_expired(reservation, now):
        yield "spec.expiresAt is in the past, so nothing is reserved: set a later time."


_ADVICE: Final[Mapping[str, tuple[Kind[Any], Callable[[Any, Mapping[str, DeviceClass], datetime], Iterator[str]]]]] = {
    kind.kind: (kind, advise)
    for kind, advise in (
        (DEVICE_MAINTENANCES, _of_maintenance),
        (MAINTENANCE_BUDGETS, _of_budget),
        (HEALTH_POLICIES, _of_health_policy),
        (MIG_POLICIES, _of_mig_policy),
        (SHARING_POLICIES, _of_sharing_policy),
        (DEVICE_LIMITS, _of_limit),
        (DEVICE_RESERVATIONS, _of_reservation),
    )
}
