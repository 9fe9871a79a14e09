"""Which pods ask the same, so that one explanation does for all of them.

Owns what of a pod and its claims an explanation depends on, as a digest. Pure.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from draco.allocation.ownership.gangs import GangKey, gang_of
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey


def scheduler_says(pod: Pod) -> str:
    """What kube-scheduler last said of the pod."""
    return pod.scheduled.message if pod.scheduled else ""


def question_of(pod: Pod, claims: Sequence[ResourceClaim]) -> bytes:
    """Stands for everything of the pod and its claims that an explanation depends on; equal for pods that ask for the same."""
    spec = pod.spec
    asked = (
        [(claim.spec, claim.status, claim.metadata.deletion_timestamp) for claim in claims],
        (
            spec.node_name,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.scheduler_name,
            spec.scheduling_gates,
        ),
        spec.resource_claims if len(claims) < len(spec.resource_claims) else (),
        scheduler_says(pod),
        gang_of(pod) is not None,
        pod.metadata.namespace,
    )
    return _digest(msgspec.json.encode(asked))


def asked_by(question: bytes, whose: ObjectKey | GangKey | None) -> bytes:
    """The question, asked by that pod only, or by pods of that group."""
    return _digest(question + str(whose).encode())


def _digest(whole: bytes) -> bytes:
    return hashlib.blake2b(whole, digest_size=16).digest()
