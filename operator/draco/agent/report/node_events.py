"""The Events on this node: what people have to act on, each recorded once. `kube.events` decides which are posted."""

from collections.abc import Mapping

import structlog

from draco.agent.hardware.fault_record import FaultRecord
from draco.agent.hardware.gpus import GpuMigView, HeldInstance, PlacementKey, device_name
from draco.agent.mig.instance_manager import NOBODY_LISTED
from draco.agent.mig.inventory import UNFINISHED, MigInventory
from draco.agent.state.changes import RegistrationHeard
from draco.agent.state.facts import NodeFacts
from draco.agent.state.node import NodeState
from draco.kube.events.events import EventRecorder
from draco.kube.events.shares import EventReason, EventType
from draco.resources.api.core import ObjectReference
from draco.resources.names import GpuUuid

log = structlog.get_logger()


class NodeEvents:
    """Records one node's Events. `faults` has news of the GPUs' faults, `inventory` attempts to change their instances."""

    def __init__(
        self, events: EventRecorder, state: NodeState, faults: FaultRecord, inventory: MigInventory, *, node: str
    ) -> None:
        self._events = events
        self._state = state
        self._faults = faults
        self._inventory = inventory
        self._node = node
        self._log = log.bind(node=node)
        self._notified: Mapping[GpuUuid, GpuMigView] = {}
        self._blamed: dict[PlacementKey, str] = {}
        self._in_trouble: dict[GpuUuid, str] = {}

    def tell(self, reason: str, action: str, note: str, about: str = "", kind: EventType = "Warning") -> None:
        """Record an Event on the Node, whose uid in Events is its name, as kubelet does it. `about` distinguishes series."""
        node = ObjectReference(
            api_version="v1",
            kind="Node",
            name=self._node,
            uid=self._node,
            field_path=f"gpus{{{about}}}" if about else "",
        )
        self._events.record(node, EventReason(reason, action, kind), note)

    def registration_heard(self, change: RegistrationHeard) -> None:
        """Kubelet refused the driver."""
        if not change.accepted:
            self.tell("RegistrationRefused", "Register", f"Kubelet refused the driver: {change.error}")

    def conflict_seen(self, facts: NodeFacts) -> None:
        """Another plugin serves the driver too."""
        conflict = facts.conflict
        if conflict is None:
            self._log.info("plugin.uncontested")
            return
        self._log.error("plugin.contested", gives_way=conflict.gives_way, error=conflict.sentence)
        self.tell("AnotherPlugin", "GiveWay" if conflict.gives_way else "KeepNode", conflict.sentence)

    def device_plugins_seen(self, facts: NodeFacts) -> None:
        """A device plugin allocates GPUs of this node too."""
        if facts.device_plugins:
            self.tell("DevicePlugin", "Taint", str(facts.device_plugins))

    def gpus_read(self, facts: NodeFacts) -> None:
        """Faults began or are over; one series per fault and GPU."""
        names = {gpu.uuid: device_name(gpu) for gpu in facts.view.gpus}
        while self._faults.news:
            news = self._faults.news.popleft()
            gpu = f"{names.get(news.gpu, 'GPU')} ({news.gpu})"
            note = f"{gpu}: {news.name} is over." if news.over else f"{gpu}: {news.name}. {news.message}"
            kind: EventType = "Warning" if news.grave and not news.over else "Normal"
            self.tell("GpuFaultEnded" if news.over else "GpuFault", "Watch", note, f"{news.gpu}/{news.name}", kind)

    def mps_seen(self, facts: NodeFacts) -> None:
        """The MPS of a GPU is not as its claim asks, or is again; one series per GPU."""
        names = {gpu.uuid: device_name(gpu) for gpu in facts.view.gpus}
        for uuid, one in facts.mps.items():
            before, self._in_trouble[uuid] = self._in_trouble.get(uuid, ""), one.problem
            if one.problem != before:
                gpu = f"{names.get(uuid, 'GPU')} ({uuid})"
                why = f"{one.problem}." if one.problem else "its MPS is well again."
                self.tell(
                    "MpsTrouble" if one.problem else "MpsTroubleEnded",
                    "Watch",
                    f"{gpu}: {why}",
                    uuid,
                    _grave(one.problem),
                )

    def instances_seen(self, _change: object) -> None:
        """Instances changed, or became known."""
        facts, refused = self._state.facts, self._inventory.refused
        if not facts.recovered:
            return  # owners of instances are on record, which has not been read yet
        before, self._notified = self._notified, facts.divisions
        for uuid, division in self._notified.items():
            known = before.get(uuid) or GpuMigView(gpu=uuid)
            for one in _newly_foreign(known, division):
                note = f"GPU {uuid}: {self._what(one)} was made by somebody else; it is left alone."
                self.tell("ForeignInstance", "Observe", note, uuid)
            for one in division.held if division.dirty else ():
                if one.instance.key in refused and self._blamed.get(one.instance.key) != one.holder:
                    by = one.holder or NOBODY_LISTED
                    note = f"GPU {uuid}: {self._what(one)} cannot be destroyed, it is in use by {by}."
                    self.tell("InstanceInUse", "Destroy", note, uuid)
                    self._blamed[one.instance.key] = one.holder
            if self._unsettled(division) and not self._unsettled(known):
                note = f"GPU {uuid}: {division.message} Nothing new is placed on it until then."
                self.tell("PartitionsUnsettled", "Settle", note, uuid)
        self._blamed = {key: who for key, who in self._blamed.items() if key in refused}

    def _what(self, one: HeldInstance) -> str:
        instance = one.instance
        bare = "" if instance.ci is not None else ", without a compute instance,"
        return f"GPU instance {instance.gi} ({self._inventory.named(instance.key)}){bare}"

    def _unsettled(self, division: GpuMigView) -> bool:
        """Whether people should know. Steps in progress need no Event, and instances in use have one already."""
        refused = any(one.instance.key in self._inventory.refused for one in division.held)
        return division.dirty and division.message != UNFINISHED and not refused


def _grave(problem: str) -> EventType:
    return "Warning" if problem else "Normal"


def _newly_foreign(known: GpuMigView, division: GpuMigView) -> list[HeldInstance]:
    """Instances that others created or completed since the last time. One that lost its compute instance is not new."""
    whole = {one.instance.key: one.instance.ci is not None for one in known.foreign}
    return [
        one
        for one in division.foreign
        if (seen := whole.get(one.instance.key)) is None or (not seen and one.instance.ci is not None)
    ]
