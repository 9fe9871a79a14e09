"""The objects that tenants and administrators write, as plain documents; also what no friendly tenant writes.

Owns their shapes. Draws nothing: whoever calls says what is in them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.adversary.cluster.observer.service import ENDING_WORKS

Document = dict[str, Any]
GPU, MIG = "gpu.nvidia.com", "mig.nvidia.com"
DRACOS_GPU, DRACOS_MIG = "gpu.draco.dev", "mig.draco.dev"
"""Classes of claims that Draco allocates."""
DRIVER = "gpu.nvidia.com"
RUN_SECONDS = "draco.dev/run-seconds"
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "1g.5gb", "2g.10gb", "3g.20gb")
"""Of H100 and of A100."""
TENANTS = ("tenant-a", "tenant-b", "hostile")
ADMINS = "gpu-admins"
DRACO = "draco.dev/v1alpha1"
WORKS = (*ENDING_WORKS, "adv-never-ends", "adv-not-there")
"""CronJobs that requests name; the last one nobody makes."""
GATE = "draco.dev/allocation"
FOREIGN_GATE = "example.com/admission"
ANY = ({"operator": "Exists"},)
PRIORITIES = {"adv-low": 10, "adv-middle": 50, "adv-high": 100, "adv-polite": 100}
"""Of PriorityClasses; pods of the last one have nobody evicted."""
SIZE = "draco.dev/group-size"
LABELS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "Kueue": (("kueue.x-k8s.io/pod-group-name",), SIZE),
    "Kueue alone": (("kueue.x-k8s.io/pod-group-name",), "kueue.x-k8s.io/pod-group-total-count"),
    "LeaderWorkerSet": (
        ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"),
        "leaderworkerset.sigs.k8s.io/size",
    ),
    "JobSet": (("jobset.sigs.k8s.io/jobset-name",), SIZE),
}
"""The labels by which pods say of which group they are, and the annotation that says its size. Nobody makes these pods but us."""


class Member(NamedTuple):
    """Of which group a pod is, how many of it start together, and where with respect to each other.

    `by` says which labels name the group, and `number` which group of a LeaderWorkerSet it is. An empty size is not said.
    """

    group: str
    size: str
    topology: str = ""
    by: str = "Kueue"
    number: int = 0

    @property
    def labels(self) -> dict[str, str]:
        """Those that a pod of the group has."""
        names, _ = LABELS[self.by]
        return dict(zip(names, (self.group, str(self.number)), strict=False))

    @property
    def annotations(self) -> dict[str, str]:
        """The same of annotations."""
        _, size = LABELS[self.by]
        said = {size: self.size, "draco.dev/topology": self.topology}
        return {key: text for key, text in said.items() if text}


def request(
    title: str,
    kind: str,
    *,
    count: int = 1,
    selectors: Sequence[str] = (),
    tolerations: Sequence[Document] = (),
    admin: bool = False,
    everything: bool = False,
) -> Document:
    """One request for devices of a class."""
    exactly: Document = {"deviceClassName": kind}
    if everything:
        exactly["allocationMode"] = "All"
    elif count != 1:
        exactly["count"] = count
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    if tolerations:
        exactly["tolerations"] = list(tolerations)
    if admin:
        exactly["adminAccess"] = True
    return {"name": title, "exactly": exactly}


def first_of(title: str, *alternatives: Document) -> Document:
    """One request that is content with any of several, the first preferred."""
    return {
        "name": title,
        "firstAvailable": [{"name": f"option-{index}", **each["exactly"]} for index, each in enumerate(alternatives)],
    }


def claim(namespace: str, title: str, requests: Sequence[Document], **devices: Any) -> Document:
    """A claim."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": title, "namespace": namespace},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def template(namespace: str, title: str, requests: Sequence[Document], *, reservation: str = "") -> Document:
    """A template of claims, which may take over those of a reservation."""
    labels = {"labels": {"draco.dev/reservation": reservation}} if reservation else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": title, "namespace": namespace},
        "spec": {"metadata": labels, "spec": {"devices": {"requests": list(requests)}}},
    }


def pod(
    namespace: str,
    title: str,
    claims: Sequence[str],
    *,
    templates: Sequence[str] = (),
    seconds: float | None = None,
    node: str = "",
    tolerations: Sequence[Document] = (),
    member: Member | None = None,
    pod_group: str = "",
    priority: str = "",
    gated: bool = False,
    held: bool = False,
) -> Document:
    """A pod that uses claims, and may be the member of a group by label or by PodGroup, or more urgent than others.

    With the gate, the scheduler does not look at it before Draco has allocated what is its own of these; one that is `held` has
    somebody else's, as of a queue that has not admitted it.
    """
    uses = [{"name": f"c{index}", "resourceClaimName": each} for index, each in enumerate(claims)]
    uses += [{"name": f"t{index}", "resourceClaimTemplateName": each} for index, each in enumerate(templates)]
    spec: Document = {
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Never",
        "resourceClaims": uses,
        "containers": [
            {"name": "main", "image": "busybox", "resources": {"claims": [{"name": use["name"]} for use in uses]}}
        ],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    if tolerations:
        spec["tolerations"] = list(tolerations)
    if priority:
        spec["priorityClassName"] = priority
    if gates := [each for each, has in ((FOREIGN_GATE, held), (GATE, gated)) if has]:
        spec["schedulingGates"] = [{"name": each} for each in gates]
    if pod_group:
        spec["schedulingGroup"] = {"podGroupName": pod_group}
    annotations = {} if seconds is None else {RUN_SECONDS: str(seconds)}
    labels = member.labels if member else {}
    annotations |= member.annotations if member else {}
    metadata = {"name": title, "namespace": namespace, "annotations": annotations, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod_group(
    namespace: str, title: str, least: int | None, *, kept: Mapping[str, str] = {}, topology: str = ""
) -> Document:
    """Pods that start together, at least so many; without a number one by one.

    `kept` are claims that it keeps for its pods, by the names that these have for them: a template's if that begins with t.
    """
    uses = {"c": "resourceClaimName", "t": "resourceClaimTemplateName"}
    spec: Document = {
        "schedulingPolicy": {"basic": {}} if least is None else {"gang": {"minCount": least}},
        "resourceClaims": [{"name": name, uses[name[0]]: title} for name, title in kept.items()],
    }
    annotations = {"draco.dev/topology": topology} if topology else {}
    metadata = {"name": title, "namespace": namespace, "annotations": annotations}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def reservation(
    namespace: str,
    title: str,
    requests: Sequence[Document],
    *,
    count: int = 1,
    duration: str = "",
    topology: str = "",
    priority: str = "",
) -> Document:
    """Claims that are there before their pods."""
    spec: Document = {"count": count, "template": {"spec": {"devices": {"requests": list(requests)}}}}
    said = {"duration": duration, "topology": topology, "priorityClassName": priority}
    spec |= {key: value for key, value in said.items() if value}
    metadata = {"name": title, "namespace": namespace}
    return {"apiVersion": DRACO, "kind": "DeviceReservation", "metadata": metadata, "spec": spec}


def limit(
    title: str, limits: Document, *, per: str, namespaces: Sequence[str], classes: Sequence[str] = ()
) -> Document:
    """How much namespaces may hold of what Draco allocates."""
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    spec: Document = {"limits": limits, "per": per, "namespaceSelector": {"matchExpressions": [chosen]}}
    spec["deviceClassNames"] = list(classes)
    return {"apiVersion": DRACO, "kind": "DeviceLimit", "metadata": {"name": title}, "spec": spec}


def profile(name: str) -> str:
    """Selects partitions of a profile."""
    return f'device.attributes["{DRIVER}"].profile == "{name}"'


def costly(*, number: int = 0, depth: int = 4, width: int = 14) -> str:
    """Costs nearly as much as the API server lets pass, on each device anew, and is always true; another text for each number."""
    numbers = json.dumps(list(range(width)))
    inner = f'device.attributes["resource.kubernetes.io"].pciBusID.size() + v0 + {number} >= 0'
    for level in reversed(range(depth)):
        inner = f"{numbers}.all(v{level}, {inner})"
    return inner


def failing(number: int = 0) -> str:
    """Ends in an error on every device."""
    return f'device.attributes["{DRIVER}"].nothing{number} == "x"'


def rule(title: str, selector: Document, *, effect: str, key: str) -> Document:
    """A taint rule of an administrator; its version is filled in by whoever writes it."""
    spec: Document = {"taint": {"key": key, "value": "adversary", "effect": effect}}
    if selector:
        spec["deviceSelector"] = selector
    return {"kind": "DeviceTaintRule", "metadata": {"name": title}, "spec": spec}


def maintenance(title: str, selector: Document, *, effect: str = "NoSchedule", **spec: Any) -> Document:
    """A request for maintenance."""
    spec = {key: value for key, value in spec.items() if value}
    return {
        "apiVersion": DRACO,
        "kind": "DeviceMaintenance",
        "metadata": {"name": title},
        "spec": {"deviceSelector": selector, "reason": "adversary", "taint": {"effect": effect}, **spec},
    }


def budget(title: str, **spec: Any) -> Document:
    """How much may be out of service; what is not said is taken away from a budget that is there."""
    nothing = dict.fromkeys(("per", "maxDevices", "maxPercent", "maxFailed", "paused"))
    return {"apiVersion": DRACO, "kind": "MaintenanceBudget", "metadata": {"name": title}, "spec": {**nothing, **spec}}


def health_policy(title: str, spec: Document) -> Document:
    """What is done about faults."""
    return {"apiVersion": DRACO, "kind": "HealthPolicy", "metadata": {"name": title}, "spec": spec}


def cron_job(title: str, seconds: float | None) -> Document:
    """A template of Jobs, whose pods run for so long on simulated nodes, or for ever."""
    annotations = {} if seconds is None else {RUN_SECONDS: str(seconds)}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    pod["containers"] = [{"name": "main", "image": "busybox"}]
    job = {"backoffLimit": 0, "template": {"metadata": {"annotations": annotations}, "spec": pod}}
    spec = {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": job}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": title}, "spec": spec}


def priority_class(title: str) -> Document:
    """One of those that pods name."""
    polite = {"preemptionPolicy": "Never"} if title == "adv-polite" else {}
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": title},
        "value": PRIORITIES[title],
        **polite,
    }


def pod_budget(namespace: str, title: str, least: int) -> Document:
    """So many pods of a namespace are not to be evicted; all of them count."""
    metadata = {"name": title, "namespace": namespace}
    spec = {"minAvailable": least, "selector": {"matchLabels": {}}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}


def policy(
    title: str,
    node: str,
    mode: str,
    *,
    bus: str = "",
    layout: Sequence[str] = (),
    allocator: str = "Scheduler",
    preemption: str = "Never",
    loss: str = "Keep",
    leak: str | None = None,
    ahead: Document | None = None,
) -> Document:
    """A policy for a node's GPUs, or for the one at a PCI address; without `ahead`, that is taken away from one that is there."""
    spec: Document = {
        "mode": mode,
        "allocator": allocator,
        "preemption": preemption,
        "gangs": {"onPartialLoss": loss, "releaseLeakedAfter": leak},
        "warmAhead": ahead,
        "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": node}},
    }
    if bus:
        expression = f'device.attributes["resource.kubernetes.io"].pciBusID == "{bus}"'
        spec["deviceSelectors"] = [{"cel": {"expression": expression}}]
    if mode == "Static":
        spec["layout"] = "chosen"
        spec["layouts"] = [{"name": "chosen", "instances": [{"profile": each} for each in layout]}]
    return {"apiVersion": DRACO, "kind": "MigPolicy", "metadata": {"name": title}, "spec": spec}
