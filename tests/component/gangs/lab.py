"""Gangs of pods that each request some of Draco's GPUs by a template."""

from collections.abc import Mapping, Sequence
from typing import Any

from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS, POD_GROUPS, PODS
from draco_local.cluster.programs.binaries import kubernetes_version
from draco_local.cluster.programs.versions import pod_groups_version
from tests.component.allocation.lab import CLASS

(POD_GROUP,) = [kind for kind in POD_GROUPS if kind.version == pod_groups_version(kubernetes_version())]
"""The kind in the version that the tests' API server serves."""


async def make_template(
    client: Client,
    namespace: str,
    name: str,
    *,
    gpus: int,
    device_class: str = CLASS,
    selectors: Sequence[object] = (),
) -> None:
    exactly = {"deviceClassName": device_class, "count": gpus, "selectors": list(selectors)}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    await client.create(CLAIM_TEMPLATES, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


async def make_pod_group(
    client: Client,
    namespace: str,
    name: str,
    *,
    least: int,
    annotations: Mapping[str, str] = {},
    template: str = "",
) -> None:
    """Create a PodGroup. With a template it has one claim, which members with the same template share."""
    meta = {"name": name, "namespace": namespace, "annotations": dict(annotations)}
    claims = [{"name": "gpu", "resourceClaimTemplateName": template}] if template else []
    spec = {"schedulingPolicy": {"gang": {"minCount": least}}, "resourceClaims": claims}
    await client.create(POD_GROUP, {"metadata": meta, "spec": spec})


async def make_gang(
    client: Client, namespace: str, name: str, *, pods: int, template: str, **spec_of_a_pod: Any
) -> list[str]:
    """A PodGroup with exactly the pods that start together. Returns their names."""
    await make_pod_group(client, namespace, name, least=pods)
    names = [f"{name}-{number}" for number in range(pods)]
    for member in names:
        await make_member(client, namespace, member, template=template, pod_group=name, **spec_of_a_pod)
    return names


async def make_member(
    client: Client,
    namespace: str,
    name: str,
    *,
    template: str,
    pod_group: str = "",
    labels: Mapping[str, str] = {},
    annotations: Mapping[str, str] = {},
    owners: Sequence[Mapping[str, str]] = (),
    **spec_of_its_own: Any,
) -> None:
    spec = {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
        "terminationGracePeriodSeconds": 1,
        **({"schedulingGroup": {"podGroupName": pod_group}} if pod_group else {}),
        **spec_of_its_own,
    }
    meta = {
        "name": name,
        "namespace": namespace,
        "labels": dict(labels),
        "annotations": dict(annotations),
        "ownerReferences": list(owners),
    }
    await client.create(PODS, {"metadata": meta, "spec": spec})


async def allocated_claims(client: Client, namespace: str) -> list[ResourceClaim]:
    return [each for each in await client.list(CLAIMS, namespace=namespace) if each.status.allocation]
