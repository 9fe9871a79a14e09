"""The kinds of change of a node that wake somebody.

Each says what it has to say in its fields. `wakes` has who is woken by which.
"""

from collections.abc import Mapping

import msgspec

from draco.agent.hardware.gpus import GpuMigView
from draco.agent.hardware.monitor import HardwareView
from draco.agent.record.contents import PreparedClaim
from draco.agent.state.facts import Leftover, OtherAllocator, PluginConflict, PublishedPool, WantedNode
from draco.kube.discovery import Features
from draco.resources.names import ClaimUid, GpuUuid


class NodeChange(msgspec.Struct, frozen=True):
    """Something happened."""


class Fact(NodeChange, frozen=True):
    """Something is known anew: the fields are those of `NodeFacts`."""


class GpusRead(Fact, frozen=True):
    """The GPUs were read, or what is made of their faults is another."""

    view: HardwareView


class InstancesSeen(Fact, frozen=True):
    """Instances of GPUs were looked at."""

    divisions: Mapping[GpuUuid, GpuMigView]


class Recovered(Fact, frozen=True):
    """Record, instances and CDI specs agree."""

    recovered: bool = True


class WantedSeen(Fact, frozen=True):
    """The GpuNode was read."""

    wanted: WantedNode


class SlicesWritten(Fact, frozen=True):
    """What is published is other than it was, or why nothing is."""

    published: PublishedPool | None
    problem: str


class RegistrationHeard(NodeChange, frozen=True):
    """Kubelet took the driver, or refused it."""

    accepted: bool
    error: str


class ConflictSeen(Fact, frozen=True):
    """Somebody else serves the driver, too, or does so no more."""

    conflict: PluginConflict | None


class DevicePluginsSeen(Fact, frozen=True):
    """A device plugin gives out GPUs of this node, too, or others, or does so no more."""

    device_plugins: OtherAllocator | None


class FeaturesSeen(Fact, frozen=True):
    """What the cluster can do was found out."""

    features: Features


class EditsFound(Fact, frozen=True):
    """What containers get of the driver was found out."""

    edits_problem: str | None


class LeftoversSeen(Fact, frozen=True):
    """Other claims than before are left over."""

    leftovers: Mapping[ClaimUid, Leftover]


class PoliciesChanged(NodeChange, frozen=True):
    """What is under maintenance, what Draco allocates, what policies make of faults or what was repaired is other than it was."""


class ReportDue(NodeChange, frozen=True):
    """The GpuNode is gone, was called lost, or says what asks for no work: a report is due though nothing on the node changed."""


class GpuWorkedOn(NodeChange, frozen=True):
    """Work on a GPU's instances has ended, for now."""

    gpu: GpuUuid


class RecordRead(NodeChange, frozen=True):
    """The claims on record are known."""


class ClaimSettled(NodeChange, frozen=True):
    """A claim was prepared or given up."""

    claim: PreparedClaim


class ClaimRewritten(NodeChange, frozen=True):
    """The containers of a prepared claim get other devices from now on."""

    claim: PreparedClaim


class ClaimInTheWay(NodeChange, frozen=True):
    """A claim keeps another from being prepared."""

    uid: ClaimUid


class HealthChanged(NodeChange, frozen=True):
    """A device is another than it was, by its state or its message."""


class LeaseRenewed(NodeChange, frozen=True):
    """The API server knows that the agent lives."""
