"""The kinds of change of a node that are not facts, with their data as fields. `wakes` has who is woken by which."""

import msgspec

from draco.agent.record.contents import PreparedClaim
from draco.resources.names import ClaimUid, GpuUuid


class NodeChange(msgspec.Struct, frozen=True):
    """A change of the node."""


class RegistrationHeard(NodeChange, frozen=True):
    """Kubelet accepted or refused the driver."""

    accepted: bool
    error: str


class PoliciesChanged(NodeChange, frozen=True):
    """Sharing, isolation, operator allocation, fault policies or repairs in the spec changed."""


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
    """The record or the spec of a prepared claim was rewritten."""

    claim: PreparedClaim


class ClaimInTheWay(NodeChange, frozen=True):
    """A claim blocks another from being prepared."""

    uid: ClaimUid


class HealthChanged(NodeChange, frozen=True):
    """A device's health or its message changed."""


class LeaseRenewed(NodeChange, frozen=True):
    """The API server has a renewed lease."""
