"""What a kubelet stand-in decides about one pod: which claims it uses, and what its status says.

Owns the claim names of a pod, the check that a claim may be used by it, and the status documents. Must not do I/O or keep
anything; time comes in as an argument.
"""

import hashlib
import ipaddress
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey

ANNOTATION_RUN_SECONDS = "draco.dev/run-seconds"
"""On a pod: how long it runs on a simulated node before it succeeds. Without it the pod runs until it is deleted."""

FINISHED = frozenset({"Succeeded", "Failed"})


class PodBlocked(Exception):
    """The pod cannot start yet; the sentence says why, and the stand-in tries again."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class ClaimUse(msgspec.Struct, frozen=True):
    """A claim that a pod uses. `generated`: made for this pod (template or extended resource), so the pod must own it."""

    key: ObjectKey
    generated: bool


def claim_uses(pod: Pod) -> list[ClaimUse]:
    """Return the claims of a pod, in the order it names them; PodBlocked when one of them has not been made yet."""
    namespace = pod.metadata.namespace
    made = {status.name: status for status in pod.status.resource_claim_statuses}
    uses = []
    for entry in pod.spec.resource_claims:
        if entry.resource_claim_name:
            uses.append(ClaimUse(ObjectKey(namespace, entry.resource_claim_name), generated=False))
            continue
        status = made.get(entry.name)
        if status is None:
            raise PodBlocked("ClaimNotCreated", f'the claim for the pod\'s entry "{entry.name}" has not been made yet')
        if status.resource_claim_name:  # none: the template wants no claim for this pod
            uses.append(ClaimUse(ObjectKey(namespace, status.resource_claim_name), generated=True))
    extended = pod.status.extended_resource_claim_status
    if extended and extended.resource_claim_name:
        uses.append(ClaimUse(ObjectKey(namespace, extended.resource_claim_name), generated=True))
    return uses


def check_usable(claim: ResourceClaim, pod: Pod, *, generated: bool) -> None:
    """PodBlocked unless the claim is allocated and reserved for this very pod (and owned by it, if made for it).

    As in kubelet, its PodGroup, matched by name, may be the owner or the consumer instead.
    """
    name = claim.metadata.key
    group = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group else ""
    if generated and not any(
        owner.uid == pod.metadata.uid or (group and (owner.kind, owner.name) == ("PodGroup", group))
        for owner in claim.metadata.owner_references
    ):
        raise PodBlocked("ClaimNotOwned", f"claim {name} was not made for pod {pod.metadata.key}")
    if claim.status.allocation is None:
        raise PodBlocked("ClaimNotAllocated", f"claim {name} is not allocated")
    if not any(
        consumer.uid == pod.metadata.uid or (group and (consumer.resource, consumer.name) == ("podgroups", group))
        for consumer in claim.status.reserved_for
    ):
        raise PodBlocked("ClaimNotReserved", f"claim {name} is not reserved for pod {pod.metadata.key}")


def drivers_of(claim: ResourceClaim) -> list[str]:
    """Return the drivers that have a device in the claim's allocation, sorted."""
    if claim.status.allocation is None:
        return []
    return sorted({result.driver for result in claim.status.allocation.devices.results})


def run_seconds(pod: Pod) -> float | None:
    """Return how long the pod wants to run, in seconds; None when it runs until deleted, or the annotation is no valid number."""
    try:
        wanted = float(pod.metadata.annotations.get(ANNOTATION_RUN_SECONDS, ""))
    except ValueError:
        return None
    return wanted if 0 <= wanted < float("inf") else None


def running_status(pod: Pod, *, node_ip: str, at: datetime) -> dict[str, Any]:
    """Status of a pod whose containers all run, for a server-side apply."""
    ready = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "conditions": [_condition(name, "True", at) for name in ready],
        "containerStatuses": [
            _container(name, {"running": {"startedAt": _time(at)}}, running=True) for name in _containers(pod)
        ],
        "startTime": _time(at),
        "hostIP": node_ip,
        "podIP": pod_ip(pod.metadata.uid),
        "podIPs": [{"ip": pod_ip(pod.metadata.uid)}],
    }


def finished_status(pod: Pod, *, started_at: datetime, at: datetime) -> dict[str, Any]:
    """Status of a pod whose containers all ended well."""
    ended = {
        "terminated": {"exitCode": 0, "reason": "Completed", "startedAt": _time(started_at), "finishedAt": _time(at)}
    }
    return {
        "phase": "Succeeded",
        "conditions": [
            _condition("PodReadyToStartContainers", "False", at),
            _condition("Initialized", "True", started_at) | {"reason": "PodCompleted"},
            _condition("ContainersReady", "False", at) | {"reason": "PodCompleted"},
            _condition("Ready", "False", at) | {"reason": "PodCompleted"},
        ],
        "containerStatuses": [_container(name, ended, running=False) for name in _containers(pod)],
        "startTime": _time(started_at),
    }


def blocked_status(pod: Pod, blocked: PodBlocked, *, node_ip: str, at: datetime) -> dict[str, Any]:
    """Status of a pod that waits on its node, with the reason where `kubectl describe` shows it."""
    waiting = {"waiting": {"reason": "ContainerCreating", "message": str(blocked)}}
    reason = {"reason": blocked.reason, "message": str(blocked)}
    return {
        "phase": "Pending",
        "conditions": [_condition("PodReadyToStartContainers", "False", at) | reason],
        "containerStatuses": [_container(name, waiting, running=False) for name in _containers(pod)],
        "startTime": _time(at),
        "hostIP": node_ip,
    }


def pod_ip(uid: str) -> str:
    """Return an address for a pod that has no network: stable for its uid, in a reserved range that nobody uses.

    No loopback address: Kubernetes allows none in an EndpointSlice.
    """
    return _address("240.0.0.0/5", uid)


def node_ip(name: str) -> str:
    """Return an address for a node, stable for its name: a loopback address, so that `port` can listen there."""
    return _address("127.64.0.0/10", name)


def _address(network: str, seed: str) -> str:
    whole = ipaddress.ip_network(network)
    digest = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
    return str(whole[1 + digest % (whole.num_addresses - 2)])


def _containers(pod: Pod) -> list[str]:
    return [container.name for container in pod.spec.containers]


def _container(name: str, state: Mapping[str, Any], *, running: bool) -> dict[str, Any]:
    return {
        "name": name,
        "image": "simulated",
        "imageID": "simulated",
        "ready": running,
        "started": running,
        "restartCount": 0,
        "state": state,
    }


def _condition(name: str, status: str, at: datetime) -> dict[str, Any]:
    return {"type": name, "status": status, "lastTransitionTime": _time(at)}


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
