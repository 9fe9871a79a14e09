"""What is written to run a Job on one GPU: the Job, from its template, and the claim by which it holds the GPU.

Owns the manifests. A template is a CronJob's, as `kubectl create job --from` takes it; what is added pins the pods to the GPU's
node and tells them which GPU is meant. A Job for verification holds the GPU like any pod, by a claim that tolerates its taints.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from draco.maintenance.progress import Purpose
from draco.maintenance.working.jobs import JobTarget, job_name, labels_of
from draco.resources.api.jobs import CronJob
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco.resources.names import (
    ANNOTATION_DEVICE_CLASS,
    ATTRIBUTE_PARENT_UUID,
    ATTRIBUTE_UUID,
    LABEL_MANAGED_BY,
    NVIDIA_DEVICE_CLASS,
    NVIDIA_DRIVER,
    NVIDIA_MIG_DEVICE_CLASS,
    read_partition_name,
)

DEFAULT_DEADLINE_S: Final = 1800
"""After so long a Job fails whose template says nothing of it: one whose image never comes would run for ever."""
CLAIM_NAME: Final = "draco-gpu"
"""What the claim is called in the pod."""
_NOT_TAKEN: Final = ("selector", "manualSelector", "suspend", "ttlSecondsAfterFinished")
"""Of a template. A Job that was deleted because it was finished would be made again."""


def job_manifest(
    request: DeviceMaintenance, purpose: Purpose, target: JobTarget, template: CronJob, *, namespace: str, node: str
) -> dict[str, Any]:
    """The Job for one GPU, on its node."""
    labels = {**labels_of(request, purpose), LABEL_MANAGED_BY: "draco"}
    made_from = template.spec.job_template
    spec: dict[str, Any] = deepcopy(made_from.spec)
    for field in _NOT_TAKEN:
        spec.pop(field, None)
    spec["activeDeadlineSeconds"] = spec.get("activeDeadlineSeconds") or DEFAULT_DEADLINE_S
    name = job_name(request, purpose, target)
    pod = spec.setdefault("template", {})
    metadata = pod["metadata"] = dict(pod.get("metadata") or {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    pod["spec"] = _pod_spec(
        pod.get("spec") or {}, target, node=node, claim=name if purpose is Purpose.VERIFICATION else ""
    )
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**made_from.metadata.labels, **labels},
            "annotations": {**made_from.metadata.annotations, "cronjob.kubernetes.io/instantiate": "manual"},
            "ownerReferences": [DEVICE_MAINTENANCES.owner(request.metadata)],
        },
        "spec": spec,
    }


def claim_manifest(
    request: DeviceMaintenance, target: JobTarget, template: CronJob, *, namespace: str
) -> dict[str, Any]:
    """The claim by which the Job for verification holds the GPU. It has no other choice, and no taint keeps it off."""
    exactly = {
        "deviceClassName": device_class_for(request, target, template),
        "selectors": [{"cel": {"expression": _is_gpu(target)}}],
        # A toleration without an effect lets it be allocated the device; only one that says NoExecute lets it keep it.
        "tolerations": [{"operator": "Exists"}, {"operator": "Exists", "effect": "NoExecute"}],
    }
    return {
        "metadata": {
            "name": job_name(request, Purpose.VERIFICATION, target),
            "namespace": namespace,
            "labels": {**labels_of(request, Purpose.VERIFICATION), LABEL_MANAGED_BY: "draco"},
            "ownerReferences": [DEVICE_MAINTENANCES.owner(request.metadata)],
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def device_class_for(request: DeviceMaintenance, target: JobTarget, template: CronJob) -> str:
    """The class by which the GPU is claimed; "" if none is known."""
    named = template.metadata.annotations.get(ANNOTATION_DEVICE_CLASS) or request.spec.device_selector.device_class_name
    if named or target.device.driver != NVIDIA_DRIVER:
        return named or ""
    return NVIDIA_MIG_DEVICE_CLASS if read_partition_name(target.device.device) else NVIDIA_DEVICE_CLASS


def _is_gpu(target: JobTarget) -> str:
    """An expression that is true of the GPU and its partitions alone, and fails on no device."""
    driver, uuid = json.dumps(target.device.driver), json.dumps(target.uuid)
    attributes = f"device.attributes[{driver}]"
    named = (
        f"({json.dumps(name)} in {attributes} && {attributes}[{json.dumps(name)}] == {uuid})"
        for name in (ATTRIBUTE_UUID, ATTRIBUTE_PARENT_UUID)
    )
    return f"device.driver == {driver} && ({' || '.join(named)})"


def _pod_spec(spec: Mapping[str, Any], target: JobTarget, *, node: str, claim: str) -> dict[str, Any]:
    made = dict(spec)
    affinity = made["affinity"] = dict(made.get("affinity") or {})
    affinity["nodeAffinity"] = _on_node(affinity.get("nodeAffinity") or {}, node)
    for field in ("initContainers", "containers"):
        if made.get(field):
            made[field] = [_container(each, target, node=node, claim=claim) for each in made[field]]
    if claim:
        entry = {"name": CLAIM_NAME, "resourceClaimName": claim}
        others = [each for each in made.get("resourceClaims") or [] if each.get("name") != CLAIM_NAME]
        made["resourceClaims"] = [*others, entry]
    return made


def _on_node(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """The same affinity, and that node only: terms are alternatives, so each of them gets it."""
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = (affinity.get(field) or {}).get("nodeSelectorTerms") or [{}]
    pinned = [{**term, "matchFields": [*(term.get("matchFields") or []), here]} for term in terms]
    return {**affinity, field: {"nodeSelectorTerms": pinned}}


def _container(container: Mapping[str, Any], target: JobTarget, *, node: str, claim: str) -> dict[str, Any]:
    made = dict(container)
    told = {
        "DRACO_NODE": node,
        "DRACO_DRIVER": target.device.driver,
        "DRACO_DEVICE": target.device.device,
        "DRACO_GPU_UUID": target.uuid,
    }
    kept = [each for each in made.get("env") or [] if each.get("name") not in told]
    made["env"] = [*({"name": name, "value": value} for name, value in told.items()), *kept]
    if claim:
        resources = made["resources"] = dict(made.get("resources") or {})
        others = [each for each in resources.get("claims") or [] if each.get("name") != CLAIM_NAME]
        resources["claims"] = [*others, {"name": CLAIM_NAME}]
    return made
