"""Whether an autoscaler believes that there is room: on a node that could give the claims their devices, were none tainted.

Karpenter (1.15) knows no taints of devices. To it an isolated GPU is free, so it adds no node, and the pod waits for as long as
the GPU is isolated. Owns the finding, which the allocator confirms for claims that tolerate everything. That Karpenter is there
is read off the nodes that it added, so that it shows in manifests as well.
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
    """The node on which Karpenter counts for these claims, which do not fit; "" if it counts on none or is not there."""
    if not any(cause.cause is Cause.TAINTED for each in requests for cause in each.causes):
        return ""
    if not any(LABEL_KARPENTERS in node.metadata.labels for node in fleet.nodes.values()):
        return ""
    trials = Trials(fleet, [tolerating_everything(claim) for claim in claims], pod)
    return next((node.metadata.name for node in trials.likely_nodes() if trials.fits(node)), "")
