"""The kinds of change of a node, with their data as fields. `wakes` has who is woken by which."""

from collections.abc import Mapping

import msgspec

from draco.agent.hardware.gpus import GpuMigView
from draco.agent.hardware.monitor import HardwareView
from draco.agent.record.contents import PreparedClaim
from draco.agent.state.facts import Leftover, OtherAllocator, PluginConflict, PublishedPool, WantedNode
from draco.kube.discovery import Features
from draco.resources.names import ClaimUid, GpuUuid


class NodeChange(msgspec.Struct, frozen=True):
    """A change of the node."""


class Fact(NodeChange, frozen=True):
    """A change with new facts: its fields are those of `NodeFacts`."""


class GpusRead(Fact, frozen=True):
    """The GPUs were read, or their faults were judged differently."""

    view: HardwareView


class InstancesSeen(Fact, frozen=True):
    """Instances of GPUs were read."""

    divisions: Mapping[GpuUuid, GpuMigView]


class Recovered(Fact, frozen=True):
    """Record, instances and CDI specs agree."""

    recovered: bool = True


class WantedSeen(Fact, frozen=True):
    """The GpuNode was read."""

    wanted: WantedNode


class SlicesWritten(Fact, frozen=True):
    """The published pool, or the reason why nothing is published, changed."""

    published: PublishedPool | None
    problem: str


class RegistrationHeard(NodeChange, frozen=True):
    """Kubelet accepted or refused the driver."""

    accepted: bool
    error: str


class ConflictSeen(Fact, frozen=True):
    """Another plugin of the driver appeared or went."""

    conflict: PluginConflict | None


class DevicePluginsSeen(Fact, frozen=True):
    """Device plugins that give out GPUs of this node appeared, changed or went."""

    device_plugins: OtherAllocator | None


class FeaturesSeen(Fact, frozen=True):
    """The cluster features were discovered."""

    features: Features


class EditsFound(Fact, frozen=True):
    """The edits for containers were determined."""

    edits_problem: str | None


class LeftoversSeen(Fact, frozen=True):
    """The leftover claims changed."""

    leftovers: Mapping[ClaimUid, Leftover]


class PoliciesChanged(NodeChange, frozen=True):
    """Isolation, operator allocation, fault policies or repairs in the spec changed."""


class ReportDue(NodeChange, frozen=True):
    """A report is due without a change on the node: the GpuNode is gone or called lost, or its new spec asks for no work."""


class GpuWorkedOn(NodeChange, frozen=True):
    """Work on a GPU's instances has ended for now."""

    gpu: GpuUuid


class RecordRead(NodeChange, frozen=True):
    """The recorded claims are known."""


class ClaimSettled(NodeChange, frozen=True):
    """A claim was prepared or unprepared."""

    claim: PreparedClaim


class ClaimRewritten(NodeChange, frozen=True):
    """The spec of a prepared claim was rewritten."""

    claim: PreparedClaim


class ClaimInTheWay(NodeChange, frozen=True):
    """A claim blocks another from being prepared."""

    uid: ClaimUid


class HealthChanged(NodeChange, frozen=True):
    """A device's health or its message changed."""


class LeaseRenewed(NodeChange, frozen=True):
    """The API server has a renewed lease."""
