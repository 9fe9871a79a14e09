"""Manifests that tenants and administrators write, hostile ones included.

Owns their shapes. Draws nothing: callers supply the values.
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
"""MIG profiles of H100 and A100."""
TENANTS = ("tenant-a", "tenant-b", "hostile")
ADMINS = "gpu-admins"
DRACO = "draco.dev/v1alpha1"
WORKS = (*ENDING_WORKS, "adv-never-ends", "adv-not-there")
"""CronJobs that requests name; the last one does not exist."""
GATE = "draco.dev/allocation"
FOREIGN_GATE = "example.com/admission"
ANY = ({"operator": "Exists"},)
PRIORITIES = {"adv-low": 10, "adv-middle": 50, "adv-high": 100, "adv-polite": 100}
"""PriorityClasses and their values; the last one never preempts."""
SIZE = "draco.dev/group-size"
JOB_SET = "jobset.sigs.k8s.io/"
"""Prefix of the JobSet controller's labels."""
LABELS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "Kueue": (("kueue.x-k8s.io/pod-group-name",), SIZE),
    "Kueue alone": (("kueue.x-k8s.io/pod-group-name",), "kueue.x-k8s.io/pod-group-total-count"),
    "LeaderWorkerSet": (
        ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"),
        "leaderworkerset.sigs.k8s.io/size",
    ),
    "JobSet": (("jobset.sigs.k8s.io/jobset-name",), SIZE),
}
"""Labels that name a pod's group, and the annotation with its size. Only the tests create such pods."""


class Member(NamedTuple):
    """A pod's group, how many of its pods start together, and its topology.

    `by` says which labels name the group, and `number` is its index in a LeaderWorkerSet. An empty size is omitted.
    """

    group: str
    size: str
    topology: str = ""
    by: str = "Kueue"
    number: int = 0

    @property
    def labels(self) -> dict[str, str]:
        """Labels of a pod of the group."""
        names, _ = LABELS[self.by]
        return dict(zip(names, (self.group, str(self.number)), strict=False))

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of a pod of the group."""
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
    capacity: Mapping[str, str] | None = None,
) -> Document:
    """One request for devices of a class, or for shares of them of some capacities."""
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
    if capacity:
        exactly["capacity"] = {"requests": dict(capacity)}
    return {"name": title, "exactly": exactly}


def first_of(title: str, *alternatives: Document) -> Document:
    """One request with alternatives, the first preferred."""
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
    """A claim template, whose claims may take over those of a reservation."""
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
    """A pod that uses claims. It may belong to a group by label or PodGroup and have a priority.

    With Draco's gate, the scheduler ignores it until Draco has allocated its share of the claims. A `held` pod has another gate,
    like one that a queue has not admitted.
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
    """A PodGroup whose pods start together, at least `least` of them; without a number, one by one.

    `kept` maps its pods' names for claims to claims that it keeps for them; a name that begins with t is a template.
    """
    uses = {"c": "resourceClaimName", "t": "resourceClaimTemplateName"}
    spec: Document = {
        "schedulingPolicy": {"basic": {}} if least is None else {"gang": {"minCount": least}},
        "resourceClaims": [{"name": name, uses[name[0]]: title} for name, title in kept.items()],
    }
    annotations = {"draco.dev/topology": topology} if topology else {}
    metadata = {"name": title, "namespace": namespace, "annotations": annotations}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def job(
    namespace: str,
    job_set: str,
    number: int,
    parallelism: Sequence[int],
    *,
    more: int = 0,
    retries: int = 6,
    seconds: float | None = None,
    topology: str = "",
    gated: bool = False,
) -> Document:
    """A Job of a JobSet as the JobSet controller writes it, whose pods use the template with the JobSet's name.

    `parallelism` is that of all Jobs of the JobSet. `more` pods follow those that start together.
    """
    said = {"jobset-name": job_set, "replicatedjob-name": f"r{number}", "replicatedjob-replicas": "1", "job-index": "0"}
    said |= {"global-replicas": str(len(parallelism)), "job-global-index": str(number), "restart-attempt": "0"}
    labels = {f"{JOB_SET}{key}": value for key, value in said.items()}
    made = pod(namespace, "", [], templates=[job_set], seconds=seconds, gated=gated)
    annotations = labels | made["metadata"]["annotations"] | ({"draco.dev/topology": topology} if topology else {})
    spec: Document = {"completionMode": "Indexed", "parallelism": parallelism[number], "backoffLimit": retries}
    spec["completions"] = max(1, parallelism[number]) + more
    spec["template"] = {"metadata": {"labels": labels, "annotations": annotations}, "spec": made["spec"]}
    metadata = {"name": f"{job_set}-r{number}-0", "namespace": namespace, "labels": labels, "annotations": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


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
    """A reservation: claims that exist before their pods."""
    spec: Document = {"count": count, "template": {"spec": {"devices": {"requests": list(requests)}}}}
    said = {"duration": duration, "topology": topology, "priorityClassName": priority}
    spec |= {key: value for key, value in said.items() if value}
    metadata = {"name": title, "namespace": namespace}
    return {"apiVersion": DRACO, "kind": "DeviceReservation", "metadata": metadata, "spec": spec}


def limit(
    title: str, limits: Document, *, per: str, namespaces: Sequence[str], classes: Sequence[str] = ()
) -> Document:
    """A DeviceLimit."""
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    spec: Document = {"limits": limits, "per": per, "namespaceSelector": {"matchExpressions": [chosen]}}
    spec["deviceClassNames"] = list(classes)
    return {"apiVersion": DRACO, "kind": "DeviceLimit", "metadata": {"name": title}, "spec": spec}


def profile(name: str) -> str:
    """A selector for partitions of a profile."""
    return f'device.attributes["{DRIVER}"].profile == "{name}"'


def costly(*, number: int = 0, depth: int = 4, width: int = 14) -> str:
    """A selector that is always true and costs nearly as much per device as is permitted. Each number gives another text."""
    numbers = json.dumps(list(range(width)))
    inner = f'device.attributes["resource.kubernetes.io"].pciBusID.size() + v0 + {number} >= 0'
    for level in reversed(range(depth)):
        inner = f"{numbers}.all(v{level}, {inner})"
    return inner


def failing(number: int = 0) -> str:
    """A selector that fails on every device."""
    return f'device.attributes["{DRIVER}"].nothing{number} == "x"'


def rule(title: str, selector: Document, *, effect: str, key: str) -> Document:
    """An administrator's taint rule. The writer fills in the API version."""
    spec: Document = {"taint": {"key": key, "value": "adversary", "effect": effect}}
    if selector:
        spec["deviceSelector"] = selector
    return {"kind": "DeviceTaintRule", "metadata": {"name": title}, "spec": spec}


def maintenance(title: str, selector: Document, *, effect: str = "NoSchedule", **spec: Any) -> Document:
    """A DeviceMaintenance."""
    spec = {key: value for key, value in spec.items() if value}
    return {
        "apiVersion": DRACO,
        "kind": "DeviceMaintenance",
        "metadata": {"name": title},
        "spec": {"deviceSelector": selector, "reason": "adversary", "taint": {"effect": effect}, **spec},
    }


def budget(title: str, **spec: Any) -> Document:
    """A MaintenanceBudget. As a patch, it removes omitted fields from an existing budget."""
    nothing = dict.fromkeys(("per", "maxDevices", "maxPercent", "maxFailed", "paused"))
    return {"apiVersion": DRACO, "kind": "MaintenanceBudget", "metadata": {"name": title}, "spec": {**nothing, **spec}}


def health_policy(title: str, spec: Document) -> Document:
    """A HealthPolicy."""
    return {"apiVersion": DRACO, "kind": "HealthPolicy", "metadata": {"name": title}, "spec": spec}


def cron_job(title: str, seconds: float | None) -> Document:
    """A Job template whose pods run for some seconds on simulated nodes, or for ever."""
    annotations = {} if seconds is None else {RUN_SECONDS: str(seconds)}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    pod["containers"] = [{"name": "main", "image": "busybox"}]
    job = {"backoffLimit": 0, "template": {"metadata": {"annotations": annotations}, "spec": pod}}
    spec = {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": job}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": title}, "spec": spec}


def priority_class(title: str) -> Document:
    """A PriorityClass that pods name."""
    polite = {"preemptionPolicy": "Never"} if title == "adv-polite" else {}
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": title},
        "value": PRIORITIES[title],
        **polite,
    }


def pod_budget(namespace: str, title: str, least: int) -> Document:
    """A PodDisruptionBudget for all pods of a namespace."""
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
    """A MigPolicy for a node's GPUs, or for the one at a PCI address. As a patch, it removes warmAhead if `ahead` is omitted."""
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


def sharing_policy(title: str, node: str, settings: Document, *, bus: str = "") -> Document:
    """A SharingPolicy for a node's GPUs, or for the one at a PCI address. As a patch, it removes omitted settings."""
    nothing: Document = dict.fromkeys(("step", "minimum", "default", "count", "migDevices", "enforcement"))
    spec: Document = {**nothing, **settings, "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": node}}}
    expression = f'device.attributes["resource.kubernetes.io"].pciBusID == "{bus}"'
    spec["deviceSelectors"] = [{"cel": {"expression": expression}}] if bus else None
    return {"apiVersion": DRACO, "kind": "SharingPolicy", "metadata": {"name": title}, "spec": spec}
