"""Finds a node that Karpenter wrongly believes to have room: it would fit if its devices had no taints.

Karpenter (1.15) ignores device taints. It treats an isolated GPU as free and adds no node, so the pod waits until the isolation
ends. The allocator confirms the finding, for claims that tolerate everything. Karpenter is detected by the labels of its nodes,
so that this works on manifests too.
"""

from collections.abc import Iterable, Sequence

from draco.allocation.fleet.fleet import Fleet
from draco.allocation.ownership.claims import tolerating_everything
from draco.explanation.model import Cause, RequestExplanation
from draco.explanation.remedies.trials import Trials
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.names import LABEL_KARPENTERS


def counted_on(
    fleet: Fleet, claims: Sequence[ResourceClaim], pod: Pod | None, requests: Iterable[RequestExplanation]
) -> str:
    """The node that Karpenter counts on for these claims, which do not fit; "" if there is none, or no Karpenter."""
    if not any(cause.cause is Cause.TAINTED for each in requests for cause in each.causes):
        return ""
    if not any(LABEL_KARPENTERS in node.metadata.labels for node in fleet.nodes.values()):
        return ""
    trials = Trials(fleet, [tolerating_everything(claim) for claim in claims], pod)
    return next((node.metadata.name for node in trials.likely_nodes() if trials.fits(node)), "")
