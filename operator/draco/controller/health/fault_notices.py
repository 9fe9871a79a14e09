"""Reports a GPU's fault on the pods and claims that use it; the agent reports it only on the Node.

Owns who is told, and that each fault is reported once, when it begins. Faults from before this replica led are remembered but not
reported, unless they are recent. Keys are node names.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Final, TypeAlias

from draco.controller.event_subjects import claim_and_pods
from draco.controller.view import BY_DEVICE, BY_POOL, ClusterView
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.draco import GpuNode, GpuStatus
from draco.resources.api.health import GpuFaultStatus
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey, gpu_name

REASON: Final = EventReason("GpuFault", "Watch", "Warning")
_RECENT: Final = timedelta(seconds=60)
_FaultKey: TypeAlias = tuple[object, ...]


class FaultNoticeReconciler:
    """Reconciles one node at a time."""

    def __init__(self, view: ClusterView, events: EventRecorder) -> None:
        self._view = view
        self._events = events
        self._told: dict[str, set[_FaultKey]] = {}

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call `wake` with every node name whose faults change."""
        self._view.gpu_nodes.subscribe(
            lambda change: wake(change.key.name), reads=lambda node: [key for key, _, _ in _faults(node)]
        )

    def all_keys(self) -> Collection[str]:
        """All nodes with GPUs."""
        return [node.metadata.name for node in self._view.gpu_nodes.store.values()]

    async def reconcile(self, name: str) -> float | None:
        """Report the faults that have begun."""
        node = self._view.gpu_nodes.store.get(ObjectKey("", name))
        if node is None:
            self._told.pop(name, None)
            return None
        found = list(_faults(node))
        known = self._told.get(name)
        for key, gpu, fault in found:
            if key not in known if known is not None else self._is_recent(fault):
                self._tell(node, gpu, fault)
        self._told[name] = {key for key, _, _ in found}
        return None

    def _is_recent(self, fault: GpuFaultStatus) -> bool:
        return fault.first_seen is not None and self._view.clock.now() - fault.first_seen < _RECENT

    def _tell(self, node: GpuNode, gpu: GpuStatus, fault: GpuFaultStatus) -> None:
        note = (
            f"{gpu.device} of {node.metadata.name} ({gpu.uuid}), which it uses: {fault.name}. {fault.message}".rstrip()
        )
        for claim in self._users(node, gpu, fault):
            for each in claim_and_pods(self._view, claim):
                self._events.record(each, REASON, note)

    def _users(self, node: GpuNode, gpu: GpuStatus, fault: GpuFaultStatus) -> Iterator[ResourceClaim]:
        """The claims that hold the GPU or, for a fault of an instance, that instance, according to their status."""
        devices = {
            DeviceKey(*node.pool, device.name)
            for item in self._view.slices.store.by_index(BY_POOL, node.pool)
            for device in item.spec.devices
            if gpu_name(device.name) == gpu.device
        } | {DeviceKey(*node.pool, gpu.device)}
        claims = {
            claim.metadata.key: claim for each in devices for claim in self._view.claims.store.by_index(BY_DEVICE, each)
        }
        for _, claim in sorted(claims.items()):
            instances = {
                each.data.get("giID")
                for each in claim.status.devices
                if DeviceKey(each.driver, each.pool, each.device) in devices and isinstance(each.data, dict)
            } - {None, ""}
            if fault.instance is None or not instances or fault.instance in instances:
                yield claim


def _faults(node: GpuNode) -> Iterator[tuple[_FaultKey, GpuStatus, GpuFaultStatus]]:
    for gpu in node.status.gpus:
        for fault in gpu.faults:
            yield (gpu.uuid, fault.name, fault.instance, fault.first_seen), gpu, fault
