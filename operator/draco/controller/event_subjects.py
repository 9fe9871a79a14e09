"""A claim and the pods that it is reserved for, to write Events about."""

from collections.abc import Iterator

from draco.controller.view import ClusterView
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import ObjectReference
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS


def claim_and_pods(view: ClusterView, claim: ResourceClaim) -> Iterator[ObjectReference]:
    """The claim first."""
    yield CLAIMS.reference(claim.metadata)
    for consumer in claim.status.reserved_for:
        pod = view.pods.store.get(ObjectKey(claim.metadata.namespace, consumer.name))
        if consumer.is_pod and pod is not None and pod.metadata.uid == consumer.uid:
            yield PODS.reference(pod.metadata)
