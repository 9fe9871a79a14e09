"""Manifests of a Job on one GPU: the Job, from its template, and the claim by which it holds the GPU.

Owns the manifests. A template is a CronJob, as for `kubectl create job --from`; Draco adds the node affinity and the environment
that names the GPU. The chart's `operator/jobs.yaml` makes the API server refuse any other difference from the template. A
verification Job holds the GPU through a claim, like any pod; `claiming` chooses its class and tolerations.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from draco.maintenance.progress import Purpose
from draco.maintenance.working.jobs import JobTarget, job_name, labels_of
from draco.resources.api.jobs import CronJob
from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.taints import DeviceToleration
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco.resources.names import (
    ATTRIBUTE_PARENT_UUID,
    ATTRIBUTE_PROFILE,
    ATTRIBUTE_UUID,
    LABEL_MANAGED_BY,
    LABEL_TEMPLATE,
)

DEFAULT_DEADLINE_S: Final = 1800
"""Deadline for Jobs whose template sets none: one whose image never comes would run for ever."""
CLAIM_NAME: Final = "draco-gpu"
"""The name of the claim in the pod."""
_NOT_TAKEN: Final = ("selector", "manualSelector", "suspend", "ttlSecondsAfterFinished")
"""Template fields that are dropped. A Job with a TTL would be deleted once finished, and then made again."""


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
            "labels": {**made_from.metadata.labels, **labels, LABEL_TEMPLATE: template.metadata.name},
            "annotations": {**made_from.metadata.annotations, "cronjob.kubernetes.io/instantiate": "manual"},
            "ownerReferences": [DEVICE_MAINTENANCES.owner(request.metadata)],
        },
        "spec": spec,
    }


def claim_manifest(
    request: DeviceMaintenance,
    target: JobTarget,
    *,
    namespace: str,
    device_class: str,
    tolerations: Sequence[DeviceToleration],
    profile: str = "",
) -> dict[str, Any]:
    """The claim by which the verification Job holds the GPU, or a partition of it with this profile."""
    exactly = {
        "deviceClassName": device_class,
        "selectors": [{"cel": {"expression": _is_gpu(target, profile)}}],
        "tolerations": [_toleration(each) for each in tolerations],
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


def _toleration(each: DeviceToleration) -> dict[str, str]:
    found = {"key": each.key, "operator": each.operator, "value": each.value, "effect": each.effect}
    return {name: text for name, text in found.items() if text}


def _is_gpu(target: JobTarget, profile: str) -> str:
    """An expression that is true only for the GPU and its partitions (of this profile), and fails on no device."""
    driver, uuid = json.dumps(target.device.driver), json.dumps(target.uuid)
    attributes = f"device.attributes[{driver}]"
    named = (
        f"({json.dumps(name)} in {attributes} && {attributes}[{json.dumps(name)}] == {uuid})"
        for name in (ATTRIBUTE_UUID, ATTRIBUTE_PARENT_UUID)
    )
    expression = f"device.driver == {driver} && ({' || '.join(named)})"
    if profile:
        expression += (
            f' && "{ATTRIBUTE_PROFILE}" in {attributes} && {attributes}["{ATTRIBUTE_PROFILE}"] == {json.dumps(profile)}'
        )
    return expression


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
    """The affinity restricted to that node. Terms are alternatives, so each of them gets the restriction."""
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
