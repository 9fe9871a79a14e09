"""Group membership: a pod's group, how many of its pods start together, and which pods use which claims.

Owns reading this from pods, PodGroups and claims. A group is the PodGroup that a pod names, or else the first of the labels of
Kueue, LeaderWorkerSet and JobSet that it has. The pods of a JobSet's Jobs are not counted here: a JobSet is judged only if its
pods have Draco's size annotation. Judges nothing. Does no I/O.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tests.adversary.cluster.observer.world import Object, World, name

SIZE = "draco.dev/group-size"
_POD_GROUP = "PodGroup"
_POD_GROUPS = "podgroups"


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
    Labels("JobSet", ("jobset.sigs.k8s.io/jobset-name",)),
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


def pod_group_of(world: World, key: str) -> Object | None:
    """The PodGroup with this key; None if it does not exist or the group has none."""
    return next((each for each in world.pod_groups.values() if f"{_POD_GROUP} {name(each)}" == key), None)


def size_of(world: World, key: str, pods: Iterable[Object]) -> int | None:
    """How many pods of a group start together; None if this is unset or its pods disagree."""
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
