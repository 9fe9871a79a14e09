"""The note about a pod whose claims are allocated: what keeps it from starting, or that nothing known does.

Owns these texts, and the parts of every note. Decides nothing: the explanation already says which of them is meant.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from draco.explanation.model import Explanation, PendingReason
from draco.explanation.wording import node_text
from draco.resources.texts import NAMED, counted, listed


class NoteParts(NamedTuple):
    """The parts of a summary. `counts` is "" if the cause has them; `names_subject`: a text names the pod or its own claim."""

    cause: str
    fix: str = ""
    counts: str = ""
    names_subject: bool = False


def of_allocated(explanation: Explanation) -> NoteParts | None:
    """The parts for claims that are allocated, or have all the users that a claim may have; None for any other reason."""
    found = _ALLOCATED.get(explanation.reason)
    if found is None:
        return None
    names_claim = explanation.reason is not PendingReason.ALLOCATED
    return found(explanation)._replace(names_subject=names_claim)


def _unusable(explanation: Explanation) -> NoteParts:
    first = explanation.obstacles[0]
    device = f" {first.device}" if first.device and first.device not in first.text else ""
    cause = f"claim {first.claim} is allocated{device}, but {first.text}"
    more = len(explanation.obstacles) - 1
    room = f" (there is room on {listed(explanation.room_on)})" if first.device and explanation.room_on else ""
    return NoteParts(cause, f"{first.remedy}{room}", f"{counted(more, 'more obstacle')}" if more else "")


def _allocated(explanation: Explanation) -> NoteParts:
    devices = listed([device for claim in explanation.allocated for device in claim.devices])
    if explanation.node:  # kubelet may still be preparing the devices
        where = f"all claims are allocated ({devices}), and the pod has its node, {explanation.node}"
        return NoteParts(where, "if it does not start, see its Events")
    if explanation.pod:
        said = "see the pod's FailedScheduling Event" if explanation.scheduler else ""
        return NoteParts(f"all claims are allocated ({devices}), and kube-scheduler has not bound the pod yet", said)
    used = any(claim.consumers for claim in explanation.allocated)
    return NoteParts(f"the claim is allocated ({devices}), and {'no pod waits for it' if used else 'no pod uses it'}")


def _binding(explanation: Explanation) -> NoteParts:
    failed = [f"{claim.claim} ({', '.join(claim.failed)})" for claim in explanation.allocated if claim.failed]
    if failed:
        return NoteParts(f"a device could not be made ready: {listed(failed)}; kube-scheduler allocates another")
    waiting = [
        f"{claim.claim} ({', '.join(claim.waiting_for)})" for claim in explanation.allocated if claim.waiting_for
    ]
    return NoteParts(f"the driver is making the allocated devices ready: {listed(waiting)}")


def _elsewhere(explanation: Explanation) -> NoteParts:
    bound = [f"{claim.claim} ({claim.nodes})" for claim in explanation.allocated if claim.nodes]
    nodes = "; ".join(node_text(each) for each in explanation.nodes[:NAMED])
    cause = f"the claim's devices are on nodes that the pod cannot use: {listed(bound)}{f'; {nodes}' if nodes else ''}"
    return NoteParts(cause, "give the pod a claim of its own, or permit it these nodes")


def _full(explanation: Explanation) -> NoteParts:
    claims = [f"{claim.claim} has {counted(len(claim.consumers), 'user')}" for claim in explanation.allocated]
    cause = f"the claim already has its maximum number of users: {listed(claims)}"
    return NoteParts(cause, "give the pod a claim of its own")


_ALLOCATED: Final[Mapping[PendingReason, Callable[[Explanation], NoteParts]]] = MappingProxyType(
    {
        PendingReason.ALLOCATED: _allocated,
        PendingReason.DEVICE_UNUSABLE: _unusable,
        PendingReason.WAITING_FOR_BINDING: _binding,
        PendingReason.BOUND_ELSEWHERE: _elsewhere,
        PendingReason.RESERVED_BY_OTHERS: _full,
    }
)
