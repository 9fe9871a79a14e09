"""What was read of a cluster for `draco status`, and the natural order of names."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from draco.overview import status_schema as schema
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Lease, Node, Pod, PodDisruptionBudget
from draco.resources.api.draco import GpuNode, MigPolicy
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceBudget
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.sharing import SharingPolicy
from draco.resources.api.slices import ResourceSlice
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import Autoscaler

_NUMBERS: Final = re.compile("([0-9]+)")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from the cluster.

    `pods` need only contain those that may wait for a claim. `users` use a claim that a taint rule hits (None: may not be read),
    `budgets` may cover them, `members` may have one through a PodGroup; for `spares_extended` see `TaintedCluster`. `leaders` are
    the held leases of operators. `missing` and `autoscalers` come from discovery; `unread` lists what could not be read.
    """

    nodes: Sequence[Node] = ()
    slices: Sequence[ResourceSlice] = ()
    claims: Sequence[ResourceClaim] = ()
    pods: Sequence[Pod] = ()
    users: Sequence[Pod] | None = None
    budgets: Sequence[PodDisruptionBudget] = ()
    members: Mapping[ObjectKey, Pod] = {}
    rules: Sequence[DeviceTaintRule] = ()
    spares_extended: bool = True
    maintenances: Sequence[DeviceMaintenance] = ()
    maintenance_budgets: Sequence[MaintenanceBudget] = ()
    gpu_nodes: Sequence[GpuNode] = ()
    mig_policies: Sequence[MigPolicy] = ()
    sharing_policies: Sequence[SharingPolicy] = ()
    limits: Sequence[DeviceLimit] = ()
    reservations: Sequence[DeviceReservation] = ()
    leaders: Sequence[Lease] = ()
    missing: Sequence[schema.MissingView] = ()
    autoscalers: Sequence[Autoscaler] = ()
    unread: Sequence[str] = ()


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts gpu-2 before gpu-10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in _NUMBERS.split(name) if part]
