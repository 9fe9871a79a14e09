"""Which claims may be moved to make room, by the policies of the GPUs that they are on.

Owns that question only, answered from what is known now. Writes nothing.
"""

from collections.abc import Iterable
from typing import NamedTuple

from draco.controller.mig.decisions import MigDecisions
from draco.controller.view import ClusterView
from draco.reservations.claims import reservation_key, reserved_by
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuNode, IdleClaims, MigMode
from draco.resources.api.meta import ObjectKey
from draco.resources.names import ATTRIBUTE_PARENT_UUID, DeviceKey


class Movable(NamedTuple):
    """An idle claim, the policy of its GPUs with what that permits, and the nodes of its devices."""

    policy: str
    most: int
    permit: IdleClaims
    nodes: tuple[GpuNode, ...]


class _Home(NamedTuple):
    """Where a device is: its GPU's UUID ("" if it is no partition) and its node."""

    gpu: str
    node: str


class MovableClaims:
    """Computed each time: what it rests on is remembered by the decisions."""

    def __init__(self, view: ClusterView, decisions: MigDecisions) -> None:
        self._view = view
        self._decisions = decisions

    def among(self, claims: Iterable[ObjectKey]) -> dict[ObjectKey, Movable]:
        """Those that are idle, and all of whose devices are partitions of GPUs that one policy lets be repaired."""
        repairs = {each.name: each.policy.spec.repair for each in self._decisions.rules}
        movable: dict[ObjectKey, Movable] = {}
        for key in claims:
            claim = self._view.claims.store.get(key)
            if (
                claim is None
                or claim.status.allocation is None
                or claim.status.reserved_for
                or self._is_reserved(claim)
            ):
                continue
            homes = {self._home(device) for device in claim.devices_held}
            policies = {self._policy_of(home) for home in homes}
            policy = next(iter(policies)) if len(policies) == 1 else ""
            if policy in repairs and repairs[policy].max_moves > 0:
                names = sorted({ObjectKey("", home.node) for home in homes})
                nodes = tuple(node for name in names if (node := self._view.gpu_nodes.store.get(name)))
                movable[key] = Movable(policy, repairs[policy].max_moves, repairs[policy].idle_claims, nodes)
        return movable

    def _is_reserved(self, claim: ResourceClaim) -> bool:
        """Whether a DeviceReservation keeps its devices for pods to come: idle is what it is there for."""
        key = reservation_key(claim)
        reservation = self._view.reservations.store.get(key) if key else None
        return reservation is not None and reservation.metadata.uid == reserved_by(claim)

    def _policy_of(self, home: _Home) -> str:
        """The policy that divides the GPU as claims ask for it; "" if there is none."""
        decision = self._decisions.of(home.node) if home.gpu else None
        for gpu in decision.gpus if decision else ():
            if gpu.uuid == home.gpu and gpu.wanted is not None and gpu.wanted.mode is MigMode.DYNAMIC:
                return gpu.policy
        return ""

    def _home(self, device: DeviceKey) -> _Home:
        found = self._view.published(device)
        if found is None:
            return _Home("", "")
        published, node = found
        return _Home(published.text(ATTRIBUTE_PARENT_UUID, device.driver), node)
