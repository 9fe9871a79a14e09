"""Who belongs together: the group of a pod, how many of it start together, and which pods use which claims.

Owns what of that is read off pods, PodGroups and claims: a group is a PodGroup that its pods name, or else what the labels of
Kueue, LeaderWorkerSet or JobSet say, the first that a pod has. How many pods the Jobs of a JobSet have is not known here: only
those are judged whose pods say it in Draco's annotation. Judges nothing. Does no I/O.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tests.adversary.cluster.observer.world import Object, World, name

SIZE = "draco.dev/group-size"
_POD_GROUP = "PodGroup"
_POD_GROUPS = "podgroups"


class Labels(NamedTuple):
    """What names a group, as Draco calls it to people, and the annotation that says how many start together; "" for none."""

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
    Labels("JobSet", ("jobset.sigs.k8s.io/jobset-name",)),
)
"""The first that a pod has counts."""


def key_of(pod: Object) -> str:
    """The group that a pod is in; "" for none. The PodGroup that it names goes before its labels."""
    namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
    if title := (pod["spec"].get("schedulingGroup") or {}).get("podGroupName"):
        return f"{_POD_GROUP} {namespace}/{title}"
    for source, names, _ in LABELS:
        said = [labels.get(each) for each in names]
        if all(said):
            return f"{source} {namespace}/{'-'.join(map(str, said))}"
    return ""


def is_pod_group(key: str) -> bool:
    """Whether the group is one by PodGroup."""
    return key.startswith(_POD_GROUP)


def pod_group_of(world: World, key: str) -> Object | None:
    """The PodGroup of this key; None for one that is not there, and for other groups."""
    return next((each for each in world.pod_groups.values() if f"{_POD_GROUP} {name(each)}" == key), None)


def size_of(world: World, key: str, pods: Iterable[Object]) -> int | None:
    """How many pods of a group start together; None where nobody says that, or not all pods say the same."""
    if is_pod_group(key):
        policy = (pod_group_of(world, key) or {"spec": {}})["spec"].get("schedulingPolicy") or {}
        return int(policy["gang"]["minCount"]) if policy.get("gang") else None
    annotations = [pod["metadata"].get("annotations") or {} for pod in pods]
    for where in (SIZE, next((each.size for each in LABELS if key.startswith(f"{each.source} ")), "")):
        sizes = {str(each.get(where) or "") for each in annotations}
        if sizes != {""}:
            text = sizes.pop() if len(sizes) == 1 else ""
            return int(text) if text.isdecimal() else None
    return None


def claims_of(pod: Object) -> list[str]:
    """The claims of a pod that are known by name."""
    namespace = pod["metadata"]["namespace"]
    made = {
        each["name"]: each.get("resourceClaimName")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or []
    }
    uses = pod["spec"].get("resourceClaims") or []
    names = [each.get("resourceClaimName") or made.get(each["name"]) for each in uses]
    return [f"{namespace}/{each}" for each in names if each]


def consumers(claim: Object) -> set[str]:
    """Whom a claim is reserved for: UIDs of pods, and keys of PodGroups."""
    namespace = claim["metadata"].get("namespace", "")
    return {
        f"{_POD_GROUP} {namespace}/{each['name']}" if each.get("resource") == _POD_GROUPS else str(each["uid"])
        for each in (claim.get("status") or {}).get("reservedFor") or []
    }


def uses(pod: Object, claim: Object) -> bool:
    """Whether the claim is reserved for the pod, by name or as one of a PodGroup that names it."""
    found = consumers(claim)
    return pod["metadata"]["uid"] in found or (key_of(pod) in found and name(claim) in claims_of(pod))


def users_of(world: World, claim: Object) -> list[Object]:
    """The pods that the claim is reserved for, as far as they are there."""
    return [pod for pod in world.pods.values() if uses(pod, claim)] if consumers(claim) else []
