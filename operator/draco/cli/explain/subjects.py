"""Finds the subject of an explanation: a pod with its claims, or a claim with the pod that waits for it. Does no I/O."""

from collections import ChainMap, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from draco.allocation.ownership.leaks import ended_users
from draco.allocation.pod_claims import MissingClaimError, claims_of, known_claims_of, uses_devices, using
from draco.cli.output import CommandError
from draco.explanation.findings.held_allocations import obstacles
from draco.explanation.findings.node_rules import unbound
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.meta import ObjectKey
from draco.resources.texts import nearest
from draco.whatif.world import World


class ExplainSubject(msgspec.Struct, frozen=True, kw_only=True):
    """Claims that are allocated together. `pod` waits for them; if none does, `ended` may be a completed pod that used them."""

    kind: str
    key: ObjectKey
    claims: list[ResourceClaim]
    pod: Pod | None = None
    ended: Pod | None = None
    scheduler: str = ""
    """The message of the pod's PodScheduled condition."""

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def subject_of(world: World, kind: str, name: str, namespace: str) -> ExplainSubject:
    """The claim or pod of that name. Raises CommandError, or MissingClaimError if the pod's claim does not exist."""
    key = ObjectKey(namespace, name)
    if kind == "pod":
        pods = _pods(world)
        if key not in pods:
            raise CommandError(_absent("pod", key, pods))
        return _of_pod(world, pods[key])
    claims = _claims(world)
    if key not in claims:
        raise CommandError(_absent("claim", key, claims))
    return _of_claim(world, claims[key], _users(world))


def pending(world: World, namespace: str, kind: str) -> list[ExplainSubject]:
    """Everything that may wait, pods first, including pods that cannot start. "" for `namespace` or `kind` means all.

    A pod without a node may wait for devices although its claims are allocated: its explanation says so.
    """
    claims = _claims(world)
    pods = [pod for _, pod in sorted(_pods(world).items()) if _may_wait(pod) and uses_devices(pod, world.fleet.classes)]
    found: list[ExplainSubject] = []
    taken: set[ObjectKey] = set()
    for pod in pods if kind != "claim" else ():
        try:
            subject = _of_pod(world, pod)
        except MissingClaimError:  # in a list, the explanation says that it is missing
            there = known_claims_of(pod, claims, world.fleet.classes)
            subject = ExplainSubject(kind="pod", key=pod.metadata.key, claims=there, pod=pod, scheduler=_scheduler(pod))
        entries = len(pod.spec.resource_claims)
        lacks = len(subject.claims) < entries or any(claim.status.allocation is None for claim in subject.claims)
        if lacks or (pod.waits and subject.claims) or obstacles(world.fleet, subject.claims, pod):
            taken.update(claim.metadata.key for claim in subject.claims)
            if namespace in {"", pod.metadata.namespace}:
                found.append(subject)
    users = _users(world)
    for key in sorted(claims) if kind != "pod" else ():
        claim = claims[key]
        waits = claim.status.allocation is None and claim.metadata.deletion_timestamp is None
        if waits and key not in taken and namespace in {"", key.namespace}:
            found.append(_of_claim(world, claim, users))
    return found


def _may_wait(pod: Pod) -> bool:
    """Whether the pod waits, or would wait if it did not set spec.nodeName."""
    return unbound(pod).waits


def _pods(world: World) -> Mapping[ObjectKey, Pod]:
    """Pods by name; those of files replace those of the cluster."""
    return ChainMap({pod.metadata.key: pod for pod in world.wanted if isinstance(pod, Pod)}, world.pods)


def _claims(world: World) -> Mapping[ObjectKey, ResourceClaim]:
    wanted = {claim.metadata.key: claim for claim in world.wanted if isinstance(claim, ResourceClaim)}
    return ChainMap(wanted, dict(world.fleet.claims))


def _of_pod(world: World, pod: Pod) -> ExplainSubject:
    key = pod.metadata.key
    if not uses_devices(pod, world.fleet.classes):
        said = _scheduler(pod)
        also = f"; kube-scheduler says: {said}" if said else ""
        raise CommandError(f"the pod {key} uses no claims, so it waits for no devices{also}")
    if pod.has_ended or (pod.is_over and not pod.spec.node_name):
        fate = f"has ended ({pod.status.phase})" if pod.has_ended else "is being deleted"
        raise CommandError(f"the pod {key} {fate}, so it waits for no devices")
    if pod.waits:
        world.note_extended_resources(pod)
    pod, claims = _with_claims(world, pod)
    return ExplainSubject(kind="pod", key=key, claims=claims, pod=pod, scheduler=_scheduler(pod))


def _users(world: World) -> Mapping[ObjectKey, Sequence[Pod]]:
    """Pods by the claims that they use: waiting pods first, then by name."""
    found: dict[ObjectKey, list[Pod]] = defaultdict(list)
    pods = [pod for _, pod in sorted(_pods(world).items())]
    for pod in sorted(pods, key=lambda pod: not pod.waits):
        for key in pod.claims:
            found[key].append(pod)
    return found


def _of_claim(world: World, claim: ResourceClaim, users: Mapping[ObjectKey, Sequence[Pod]]) -> ExplainSubject:
    """The claim, with all claims of the first pod that waits for it, because they are allocated together.

    If none waits: with those of a pod that already has a node, unless the claim's allocation can be used there. Such a pod
    bypassed the scheduler.
    """
    key = claim.metadata.key
    known = users.get(key, ())
    for pod in filter(_may_wait, known):
        if pod.waits or claim.status.allocation is None or obstacles(world.fleet, [claim], pod):
            pod, claims = _with_claims(world, pod)  # noqa: PLW2901 - the pod with its claims added
            return ExplainSubject(kind="claim", key=key, claims=claims, pod=pod, scheduler=_scheduler(pod))
    ended = ended_users(claim, known) if claim.status.allocation is None else []
    return ExplainSubject(kind="claim", key=key, claims=[claim], ended=next(iter(ended), None))


def _with_claims(world: World, pod: Pod) -> tuple[Pod, list[ResourceClaim]]:
    """The claims of a pod, and the pod that uses them.

    A pod in the cluster is taken as it is: a claim that was not created yet is a reason to wait. For a pod in a file, its claims
    are simulated. Raises MissingClaimError for a claim that could not be created.
    """
    known = _claims(world)
    if not any(pod is item for item in world.wanted):
        return pod, known_claims_of(pod, known, world.fleet.classes)
    claims = claims_of(pod, known, world.templates, world.fleet.classes)
    return using(pod, claims), claims


def _scheduler(pod: Pod) -> str:
    said = pod.scheduled
    return said.message if said is not None and said.status == "False" else ""


def _absent(kind: str, key: ObjectKey, known: Mapping[ObjectKey, object]) -> str:
    elsewhere = sorted(each.namespace for each in known if each.name == key.name)
    if elsewhere:
        there = elsewhere[0]
        return f"there is no {kind} {key.name} in the namespace {key.namespace}; there is one in {there} (-n {there})"
    here = {each.name for each in known if each.namespace == key.namespace}
    return f"there is no {kind} {key.name} in the namespace {key.namespace}{nearest(key.name, here)}"
