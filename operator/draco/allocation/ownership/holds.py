"""Which nodes autoscalers must not remove: those where claims of Draco's hold devices without a pod.

Owns the rule and the Node annotations. Autoscalers look at pods, and such a claim, above all a reservation, has none yet. Draco
removes only what it has set: an annotation of its own records which, and values that a person set, "false" too, stay.
"""

from collections.abc import Mapping
from typing import Final

from draco.allocation.ownership.claims import is_for_operator
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.names import ANNOTATION_HELD

SCALE_DOWN_DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
HOLDS: Final = (SCALE_DOWN_DISABLED, DO_NOT_DISRUPT)
"""Node annotations of Cluster Autoscaler and Karpenter."""
_YES: Final = "true"

AnnotationChange = Mapping[str, str | None]
"""Annotations to set, and to remove (None)."""


def unattended_nodes(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> set[str]:
    """The nodes where a claim of Draco's has devices but no pod uses it. Pools of Draco's agents have their nodes' names."""
    allocation = claim.status.allocation
    if allocation is None or claim.status.reserved_for or claim.metadata.deletion_timestamp is not None:
        return set()
    if not is_for_operator(claim, classes):
        return set()
    return {result.pool for result in allocation.devices.results}


def holding(annotations: Mapping[str, str]) -> AnnotationChange:
    """The change that keeps autoscalers off the node; empty if all annotations are set already."""
    missing = [name for name in HOLDS if name not in annotations]
    if not missing:
        return {}
    kept = {*annotations.get(ANNOTATION_HELD, "").split(), *missing}
    return dict.fromkeys(missing, _YES) | {ANNOTATION_HELD: " ".join(name for name in HOLDS if name in kept)}


def releasing(annotations: Mapping[str, str]) -> AnnotationChange:
    """The change that removes Draco's annotations, so that autoscalers may remove the node."""
    if ANNOTATION_HELD not in annotations:
        return {}
    ours = set(annotations[ANNOTATION_HELD].split()).intersection(HOLDS)
    gone = [name for name in HOLDS if name in ours and annotations.get(name) == _YES]
    return dict.fromkeys([*gone, ANNOTATION_HELD])
