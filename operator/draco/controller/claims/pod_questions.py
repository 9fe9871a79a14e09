"""Recognizes pods that ask the same question, so that one explanation serves them all.

Owns the digest of everything in a pod and its claims that an explanation depends on. Pure.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from draco.allocation.ownership.gangs import GangKey, gang_of
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey


def scheduler_says(pod: Pod) -> str:
    """The last message of kube-scheduler about the pod."""
    return pod.scheduled.message if pod.scheduled else ""


def question_of(pod: Pod, claims: Sequence[ResourceClaim]) -> bytes:
    """A digest of everything that an explanation depends on; equal for pods that ask the same."""
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
    """The question as asked by that pod, or by pods of that group, only."""
    return _digest(question + str(whose).encode())


def _digest(whole: bytes) -> bytes:
    return hashlib.blake2b(whole, digest_size=16).digest()
