"""Group membership: a pod's group, how many of its pods start together, and which pods use which claims.

Owns reading this from pods, PodGroups and claims. A group is the PodGroup that a pod names, or else the first of the labels of
Kueue, LeaderWorkerSet and JobSet that it has. Without Draco's size annotation, the size of a JobSet is that of its Jobs. Judges
nothing. Does no I/O.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tests.adversary.cluster.observer.world import Object, World, condition, is_live, name, phase

SIZE = "draco.dev/group-size"
_POD_GROUP = "PodGroup"
_POD_GROUPS = "podgroups"
_JOB_SET = "JobSet"
_JOB_SET_NAME = "jobset.sigs.k8s.io/jobset-name"
_NUMBER_OF_JOBS = "jobset.sigs.k8s.io/global-replicas"


class Labels(NamedTuple):
    """Labels that name a group, Draco's name for the kind of group, and the size annotation; "" for none."""

    source: str
    names: tuple[str, ...]
    size: str = ""


LABELS = (
    Labels("Kueue pod group", ("kueue.x-k8s.io/pod-group-name",), "kueue.x-k8s.io/pod-group-total-count"),
    Labels(
        "LeaderWorkerSet group",
        ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"),
        "leaderworkerset.sigs.k8s.io/size",
    ),
    Labels(_JOB_SET, (_JOB_SET_NAME,)),
)
"""In order: the first that a pod has counts."""


def key_of(pod: Object) -> str:
    """Key of a pod's group; "" for none. Its PodGroup has precedence over labels."""
    namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
    if title := (pod["spec"].get("schedulingGroup") or {}).get("podGroupName"):
        return f"{_POD_GROUP} {namespace}/{title}"
    for source, names, _ in LABELS:
        said = [labels.get(each) for each in names]
        if all(said):
            return f"{source} {namespace}/{'-'.join(map(str, said))}"
    return ""


def is_pod_group(key: str) -> bool:
    """Whether the key is of a PodGroup."""
    return key.startswith(_POD_GROUP)


def is_job_set(key: str) -> bool:
    """Whether the key is of a JobSet."""
    return key.startswith(f"{_JOB_SET} ")


def job_set_of(job: Object) -> str:
    """Key of a Job's JobSet; "" for none."""
    title = (job["metadata"].get("labels") or {}).get(_JOB_SET_NAME)
    return f"{_JOB_SET} {job['metadata']['namespace']}/{title}" if title else ""


def pod_group_of(world: World, key: str) -> Object | None:
    """The PodGroup with this key; None if it does not exist or the group has none."""
    return next((each for each in world.pod_groups.values() if f"{_POD_GROUP} {name(each)}" == key), None)


def size_of(world: World, key: str, pods: Iterable[Object]) -> int | None:
    """How many pods of a group start together; None if this is unset or unknown, or its pods disagree."""
    pods = list(pods)
    if is_pod_group(key):
        policy = (pod_group_of(world, key) or {"spec": {}})["spec"].get("schedulingPolicy") or {}
        return int(policy["gang"]["minCount"]) if policy.get("gang") else None
    annotations = [pod["metadata"].get("annotations") or {} for pod in pods]
    for where in (SIZE, next((each.size for each in LABELS if key.startswith(f"{each.source} ")), "")):
        sizes = {str(each.get(where) or "") for each in annotations}
        if sizes != {""}:
            text = sizes.pop() if len(sizes) == 1 else ""
            return int(text) if text.isdecimal() else None
    return _size_by_jobs(world, key, pods) if is_job_set(key) else None


def _size_by_jobs(world: World, key: str, pods: list[Object]) -> int | None:
    """The pods of all Jobs of a JobSet; None while a Job is missing or being deleted, or has more pods than it is to have."""
    jobs = [each for each in world.jobs.values() if job_set_of(each) == key and not is_deleted(each)]
    if {(pod["metadata"].get("labels") or {}).get(_NUMBER_OF_JOBS) for pod in pods} != {str(len(jobs))}:
        return None
    sizes: list[int] = []
    for job in jobs:
        own = [pod for pod in pods if job["metadata"]["uid"] in _owners(pod)]
        spec, succeeded = job["spec"], sum(phase(pod) == "Succeeded" for pod in own)
        size = succeeded if has_ended(job) else min(spec["parallelism"], spec.get("completions", spec["parallelism"]))
        if sum(map(is_live, own)) > size:
            return None
        sizes.append(size)
    known = {job["metadata"]["uid"] for job in jobs}
    return sum(sizes) if all(known & _owners(pod) for pod in pods if is_live(pod)) else None


def changed_sets(before: Object | None, after: Object | None) -> set[str]:
    """The JobSets whose size may change with a Job; empty if only its status changed."""
    sets = {job_set_of(each) for each in (before, after) if each is not None} - {""}
    return sets if before is None or after is None or _terms(before) != _terms(after) else set()


def _terms(job: Object) -> tuple[object, ...]:
    spec = job["spec"]
    return job_set_of(job), spec.get("parallelism"), spec.get("completions"), has_ended(job), is_deleted(job)


def has_ended(job: Object) -> bool:
    """Whether the Job creates no more pods."""
    return any(condition(job, each).get("status") == "True" for each in ("Complete", "Failed"))


def is_deleted(one: Object) -> bool:
    """Whether the object is being deleted."""
    return bool(one["metadata"].get("deletionTimestamp"))


def _owners(pod: Object) -> set[str]:
    return {each["uid"] for each in pod["metadata"].get("ownerReferences") or []}


def claims_of(pod: Object) -> list[str]:
    """Names of the pod's claims, as far as they are known."""
    namespace = pod["metadata"]["namespace"]
    made = {
        each["name"]: each.get("resourceClaimName")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or []
    }
    uses = pod["spec"].get("resourceClaims") or []
    names = [each.get("resourceClaimName") or made.get(each["name"]) for each in uses]
    return [f"{namespace}/{each}" for each in names if each]


def consumers(claim: Object) -> set[str]:
    """The pods' UIDs and PodGroups' keys that a claim is reserved for."""
    namespace = claim["metadata"].get("namespace", "")
    return {
        f"{_POD_GROUP} {namespace}/{each['name']}" if each.get("resource") == _POD_GROUPS else str(each["uid"])
        for each in (claim.get("status") or {}).get("reservedFor") or []
    }


def uses(pod: Object, claim: Object) -> bool:
    """Whether the claim is reserved for the pod, or is one of its claims and reserved for its PodGroup."""
    found = consumers(claim)
    return pod["metadata"]["uid"] in found or (key_of(pod) in found and name(claim) in claims_of(pod))


def users_of(world: World, claim: Object) -> list[Object]:
    """The existing pods that the claim is reserved for."""
    return [pod for pod in world.pods.values() if uses(pod, claim)] if consumers(claim) else []
