"""What a user may do to a request: approve, finish, cancel.

Owns the refusals. Each function returns the spec fields to set, none if they are set already. Raises CommandError if the step
makes no sense in the request's phase.
"""

from collections.abc import Mapping
from typing import Any

from draco.cli.output import CommandError
from draco.overview.maintenances import BEFORE_ISOLATION, needs_approval, phase_of
from draco.resources.api.maintenance import OVER, Approval, DeviceMaintenance, MaintenancePhase
from draco.resources.texts import counted

Changes = Mapping[str, Any]


def approval(request: DeviceMaintenance) -> Changes:
    """The fields that approve it."""
    name = request.metadata.name
    _refuse_ended(request, "approve")
    if request.spec.approval is not Approval.REQUIRED:
        raise CommandError(f"{name} needs no approval (spec.approval is Automatic): `draco maintain status {name}`.")
    if not needs_approval(request):
        return {}
    if request.spec.finished:
        raise CommandError(f"{name} is finished already: there is nothing to approve.")
    return {"approved": True}


def finish(request: DeviceMaintenance) -> Changes:
    """The fields that mark the work as done."""
    name, phase = request.metadata.name, phase_of(request)
    _refuse_ended(request, "finish")
    cancel = f"`draco maintain cancel {name}`"
    if request.spec.finished:
        return {}
    if phase in BEFORE_ISOLATION:
        raise CommandError(
            f"{name} has not begun (phase {phase}), so there is no work to finish: cancel it with {cancel}."
        )
    if phase in {MaintenancePhase.ISOLATED, MaintenancePhase.DRAINING}:
        in_use = request.status.in_use or 0
        held = f": {counted(in_use, 'device')} still in use" if in_use else ""
        raise CommandError(
            f"{name} is not ready for work yet (phase {phase}{held}). To return the devices without the work: {cancel}."
        )
    if phase is MaintenancePhase.FAILED:
        raise CommandError(
            f"{name} has failed: {request.status.message or 'its conditions say why.'} Repair that, and it resumes; or "
            f"return the devices unrepaired: {cancel}."
        )
    return {"finished": True}


def cancellation(request: DeviceMaintenance) -> Changes:
    """The fields that cancel it."""
    _refuse_ended(request, "cancel")
    return {} if request.spec.cancelled else {"cancelled": True}


def _refuse_ended(request: DeviceMaintenance, what: str) -> None:
    name, phase = request.metadata.name, phase_of(request)
    if phase in OVER:
        raise CommandError(
            f"{name} is {phase.value.lower()} already, there is nothing to {what}: start another one with `draco maintain start`."
        )
    if request.metadata.deletion_timestamp is not None:
        raise CommandError(f"{name} is being deleted: its devices go back to service, there is nothing to {what}.")
    if request.spec.cancelled and what != "cancel":
        raise CommandError(f"{name} was cancelled: its devices go back to service, there is nothing to {what}.")
