"""What a request would do, counted before anything is done.

Owns the numbers of `status.rehearsal` and of the preview of `draco maintain start`. Does no I/O.
"""

from collections.abc import Sequence

import msgspec

from draco.allocation.fleet.hardware import PoolHardware
from draco.maintenance.impact import impact_of, with_budgets
from draco.maintenance.matching import scope_of
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Node, Pod, PodDisruptionBudget
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceRehearsal
from draco.resources.api.slices import ResourceSlice, current_slices
from draco.resources.api.taints import DeviceTaint, DeviceTaintRule
from draco.resources.names import DeviceKey


class RehearsedObjects(msgspec.Struct, frozen=True, kw_only=True):
    """What the numbers are counted from. `pods` is None where they may not be read."""

    slices: Sequence[ResourceSlice] = ()
    claims: Sequence[ResourceClaim] = ()
    classes: Sequence[DeviceClass] = ()
    pods: Sequence[Pod] | None = None
    disruption_budgets: Sequence[PodDisruptionBudget] = ()
    nodes: Sequence[Node] = ()
    rules: Sequence[DeviceTaintRule] = ()


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """What would be isolated, and the numbers. `problem` is a sentence why it would not start."""

    problem: str = ""
    reason: str = ""
    devices: tuple[DeviceKey, ...] = ()
    summary: MaintenanceRehearsal = MaintenanceRehearsal(devices=0, claims=0, pods=0)


def rehearse(request: DeviceMaintenance, objects: RehearsedObjects) -> Rehearsal:
    """Count what isolating and draining would do."""
    pools = {pool: PoolHardware(parts) for pool, parts in current_slices(objects.slices).items()}
    held = [key for claim in objects.claims for key in claim.devices_held]
    scope = scope_of(request.spec.device_selector, pools, held)
    devices = scope.named | scope.overlapping.keys()
    if not devices:
        return Rehearsal(problem="deviceSelector matches no published device.", reason="NoDevices")
    taint = DeviceTaint(key=request.spec.taint.key, effect="NoExecute")
    found = with_budgets(
        impact_of(taint, devices.__contains__, devices=devices, claims=objects.claims, pods=objects.pods),
        objects.disruption_budgets,
        objects.pods or (),
    )
    summary = MaintenanceRehearsal(
        devices=len(devices),
        claims=len(found.claims),
        pods=len(found.pods),
        pod_names=list(map(str, found.pods)),
        blocking_budgets=[str(each.key) for each in found.broken],
    )
    return Rehearsal(devices=tuple(sorted(devices)), summary=summary)
