"""Which nodes autoscalers must not remove: those that have devices of Draco's claims without a pod.

Owns the rule, and which annotations of a Node say so. Autoscalers look at pods, and such a claim, a reservation above all, has
none yet. Only what Draco put there is ever taken away: an annotation of Draco's own remembers which, and a person's word, "false"
too, stays.
"""

from collections.abc import Mapping
from typing import Final

from draco.allocation.ownership.claims import is_for_operator
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.names import ANNOTATION_HELD

SCALE_DOWN_DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
HOLDS: Final = (SCALE_DOWN_DISABLED, DO_NOT_DISRUPT)
"""Annotations of a Node, by Cluster Autoscaler and by Karpenter."""
_YES: Final = "true"

AnnotationChange = Mapping[str, str | None]
"""Annotations to be set, and those to be removed (None)."""


def unattended_nodes(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> set[str]:
    """The nodes on which a claim of Draco's has devices while no pod uses it. Pools of Draco's agents have their nodes' names."""
    allocation = claim.status.allocation
    if allocation is None or claim.status.reserved_for or claim.metadata.deletion_timestamp is not None:
        return set()
    if not is_for_operator(claim, classes):
        return set()
    return {result.pool for result in allocation.devices.results}


def holding(annotations: Mapping[str, str]) -> AnnotationChange:
    """What to change so that autoscalers leave the node; nothing where somebody has said something about it already."""
    missing = [name for name in HOLDS if name not in annotations]
    if not missing:
        return {}
    kept = {*annotations.get(ANNOTATION_HELD, "").split(), *missing}
    return dict.fromkeys(missing, _YES) | {ANNOTATION_HELD: " ".join(name for name in HOLDS if name in kept)}


def releasing(annotations: Mapping[str, str]) -> AnnotationChange:
    """What to change so that autoscalers may remove the node again, as far as Draco is concerned."""
    if ANNOTATION_HELD not in annotations:
        return {}
    ours = set(annotations[ANNOTATION_HELD].split()).intersection(HOLDS)
    gone = [name for name in HOLDS if name in ours and annotations.get(name) == _YES]
    return dict.fromkeys([*gone, ANNOTATION_HELD])
