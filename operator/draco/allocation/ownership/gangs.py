"""Gangs: which pods belong together, their number and topology, from a PodGroup or the labels of Kueue, LWS and JobSet.

Owns the order of these sources (a PodGroup first), their label names, and the errors for a group whose terms, or those of its
DeviceClasses, contradict each other. Never writes to a group. `placing` decides where it goes.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from draco.allocation.ownership.claims import classes_of
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Pod
from draco.resources.api.jobs import Job
from draco.resources.api.scheduling import PodGroup
from draco.resources.names import ANNOTATION_GROUP_SIZE, ANNOTATION_TOPOLOGY
from draco.resources.texts import listed

_KUEUE_NAME: Final = "kueue.x-k8s.io/pod-group-name"
_KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
_LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
_LWS_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"
_LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_JOBS: Final = "jobset.sigs.k8s.io/global-replicas"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
_SIZE: Final = re.compile("[1-9][0-9]{0,5}")
_SHOWN: Final = 40
_ONE_TOPOLOGY: Final = f"Give all of its pods the same one in the annotation {ANNOTATION_TOPOLOGY}."


class GangSource(StrEnum):
    """The object that groups the pods, as named in messages."""

    POD_GROUP = "PodGroup"
    KUEUE = "Kueue pod group"
    LWS = "LeaderWorkerSet group"
    JOB_SET = "JobSet"


class GangKey(NamedTuple):
    """The identity of a group."""

    source: GangSource
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.source} {self.namespace}/{self.name}"


class GangTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a group. `size` pods must have their devices before any of them starts."""

    size: int
    topology: str = ""
    priority: int = 0


class UnknownTerms(msgspec.Struct, frozen=True):
    """Why the terms of a group are unknown: one sentence."""

    why: str


def pod_group_of(pod: Pod) -> GangKey | None:
    """The pod's PodGroup, the only kind of group that kube-scheduler knows."""
    group = pod.spec.scheduling_group
    if group is None or not group.pod_group_name:
        return None
    return GangKey(GangSource.POD_GROUP, pod.metadata.namespace, group.pod_group_name)


def gang_of(pod: Pod) -> GangKey | None:
    """The pod's group, from the first source that names one."""
    if pod_group := pod_group_of(pod):
        return pod_group
    namespace, labels = pod.metadata.namespace, pod.metadata.labels
    if name := labels.get(_KUEUE_NAME):
        return GangKey(GangSource.KUEUE, namespace, name)
    if (name := labels.get(_LWS_NAME)) and (index := labels.get(_LWS_INDEX)):
        return GangKey(GangSource.LWS, namespace, f"{name}-{index}")
    if name := labels.get(JOBSET_NAME):
        return GangKey(GangSource.JOB_SET, namespace, name)
    return None


def job_set_of(job: Job) -> GangKey:
    """The JobSet of a Job that belongs to one."""
    return GangKey(GangSource.JOB_SET, job.metadata.namespace, job.metadata.labels.get(JOBSET_NAME, ""))


def has_served(key: GangKey, pod: Pod) -> bool:
    """Whether the pod has succeeded and still counts. Not in a PodGroup: kube-scheduler needs enough pods that have not ended."""
    return pod.status.phase == "Succeeded" and key.source is not GangSource.POD_GROUP


def terms_of(
    key: GangKey, pods: Sequence[Pod], pod_group: PodGroup | None, parallelism: Mapping[str, int]
) -> GangTerms | UnknownTerms | None:
    """The group's terms; None if its pods need not start together. `parallelism`: pods of known Jobs, for JobSets."""
    size = _size(key, pods, pod_group, parallelism)
    if size is None or isinstance(size, UnknownTerms):
        return size
    topology = _topology(key, pods, pod_group)
    if isinstance(topology, UnknownTerms):
        return topology
    return GangTerms(size=size, topology=topology, priority=group_priority(pods, pod_group))


def group_priority(pods: Iterable[Pod], pod_group: PodGroup | None) -> int:
    """The priority of a group, for its place in the queue and for preemption by and of it.

    The PodGroup's, as kube-scheduler does since 1.36; without one the lowest of the pods that have not ended, as one pod of high
    priority must not promote the others.
    """
    if pod_group is not None and pod_group.spec.priority is not None:
        return pod_group.spec.priority
    return min((pod.spec.priority for pod in pods if not pod.is_over), default=0)


def default_topology(
    key: GangKey, claims: Iterable[ResourceClaim], classes: Mapping[str, DeviceClass]
) -> str | UnknownTerms:
    """The topology of the DeviceClasses of the group's claims; applies if the group itself has none."""
    said: dict[str, str] = {}
    for name in sorted({name for claim in claims for name in classes_of(claim)}):
        if (known := classes.get(name)) and (topology := known.metadata.annotations.get(ANNOTATION_TOPOLOGY)):
            said.setdefault(topology, name)
    if len(said) > 1:
        differing = listed(f"{name} has {topology}" for topology, name in said.items())
        return UnknownTerms(f"{key} asks for DeviceClasses of different topologies: {differing}. {_ONE_TOPOLOGY}")
    return next(iter(said), "")


def _size(
    key: GangKey, pods: Sequence[Pod], pod_group: PodGroup | None, parallelism: Mapping[str, int]
) -> int | UnknownTerms | None:
    if key.source is GangSource.POD_GROUP:
        if pod_group is None:
            return UnknownTerms(f"{key} does not exist, so it is not known how many pods start together: create it.")
        gang = pod_group.spec.scheduling_policy.gang
        return None if gang is None else max(1, gang.min_count)
    if said := _annotated(pods, ANNOTATION_GROUP_SIZE):
        return _number(key, ANNOTATION_GROUP_SIZE, said)
    if key.source is GangSource.JOB_SET:
        return _size_of_job_set(key, pods, parallelism)
    where = _KUEUE_COUNT if key.source is GangSource.KUEUE else _LWS_SIZE
    return _number(key, where, _annotated(pods, where))


def _number(key: GangKey, where: str, said: Collection[str]) -> int | UnknownTerms:
    if not said:
        return UnknownTerms(f"No pod of {key} has the annotation {where}, so its size is not known.")
    if len(said) > 1:
        return UnknownTerms(f"Pods of {key} say different sizes in the annotation {where}: {listed(sorted(said))}.")
    (text,) = said
    if not _SIZE.fullmatch(text):
        return UnknownTerms(f"Annotation {where} of {key} is {text[:_SHOWN]!r}: write a number of pods, such as 8.")
    return int(text)


def _size_of_job_set(key: GangKey, pods: Sequence[Pod], parallelism: Mapping[str, int]) -> int | UnknownTerms:
    number = _jobs_of_set(pods)
    if not number:
        return UnknownTerms(
            f"The pods of {key} do not have one label {JOBSET_JOBS}, so its size is not known: annotate them with "
            f"{ANNOTATION_GROUP_SIZE}."
        )
    jobs = {name for pod in pods if (name := pod.metadata.labels.get(JOB_NAME))}
    have_none = {name for name, pods_of_job in parallelism.items() if not pods_of_job}
    if len(jobs | have_none) < number:
        return UnknownTerms(f"{key} has {number} Jobs, and pods of {len(jobs)} exist.")
    if missing := sorted(jobs - parallelism.keys()):
        return UnknownTerms(
            f"It is not known how many pods Job {missing[0]} of {key} has: it lacks the label {JOBSET_NAME}, has more pods than "
            "its parallelism, or is being deleted, or the operator lacks the right to list and watch Jobs."
        )
    return sum(parallelism[job] for job in jobs)


def _jobs_of_set(pods: Iterable[Pod]) -> int:
    """The number of Jobs in the JobSet of these pods; 0 if the pods do not agree on one."""
    said = {pod.metadata.labels.get(JOBSET_JOBS, "") for pod in pods}
    text = said.pop() if len(said) == 1 else ""
    return int(text) if _SIZE.fullmatch(text) else 0


def _topology(key: GangKey, pods: Sequence[Pod], pod_group: PodGroup | None) -> str | UnknownTerms:
    said = _annotated(pods, ANNOTATION_TOPOLOGY)
    if pod_group is not None:
        if text := pod_group.metadata.annotations.get(ANNOTATION_TOPOLOGY):
            said = {text}
        constraints = pod_group.spec.scheduling_constraints
        if constraints is not None and not said:
            said = {each.key for each in constraints.topology}
    if len(said) > 1:
        return UnknownTerms(f"{key} is to be in several topologies at once: {listed(sorted(said))}. {_ONE_TOPOLOGY}")
    return next(iter(said), "")


def _annotated(pods: Iterable[Pod], annotation: str) -> set[str]:
    return {text for pod in pods if (text := pod.metadata.annotations.get(annotation))}
