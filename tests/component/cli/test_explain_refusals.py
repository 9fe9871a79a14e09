"""`draco explain pod` where no device is at fault: a ResourceQuota refuses the pod's claim."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from draco.cli.explain.command import command as explain_command
from draco.kube.connect.client import Client
from draco.resources.kinds import CLAIM_TEMPLATES, EVENTS, PODS
from draco_local.cluster.controlplane import ControlPlane
from tests.component.controller.replicas import until
from tests.requests import call


@pytest.mark.parametrize(
    ("resource", "said"),
    [
        (
            "gpu.example.com.deviceclass.resource.k8s.io/devices",
            "1 devices of DeviceClass gpu.example.com, other claims ask for 0",
        ),
        ("count/resourceclaims.resource.k8s.io", "0 ResourceClaims, and there are 0"),
    ],
)
async def test_a_pod_whose_claim_is_over_a_quota_is_told_which_quota_and_how_much_of_it_is_used(
    control_plane: ControlPlane, client: Client, namespace: str, resource: str, said: str
) -> None:
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    most = "1" if "devices" in resource else "0"
    call(control_plane, "POST", quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": {resource: most}}})

    async def counted() -> bool:
        return bool(call(control_plane, "GET", f"{quotas}/gpus").get("status", {}).get("used"))

    await until(counted, what="the quota's first count")
    meta = {"name": "two", "namespace": namespace}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "count": 2}}
    await client.create(CLAIM_TEMPLATES, {"metadata": meta, "spec": {"spec": {"devices": {"requests": [request]}}}})
    spec = {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two"}],
    }
    await client.create(PODS, {"metadata": {**meta, "name": "train"}, "spec": spec})

    async def refused() -> bool:
        found = await client.list(EVENTS, namespace=namespace, field_selector="reason=FailedResourceClaimCreation")
        return bool(found)

    await until(refused, what="the Event of kube-controller-manager")
    arguments = ["--kubeconfig", str(control_plane.kubeconfig), "-n", namespace, "pod", "train"]
    shown = await asyncio.to_thread(CliRunner().invoke, explain_command, arguments)
    assert shown.exit_code == 0, shown.output
    assert (
        f"The claim for gpu cannot be created: ResourceQuota gpus of namespace {namespace} permits {said}"
        in shown.stdout
    )
    assert "Delete claims that are not needed, or have the quota raised." in shown.stdout
    document = await asyncio.to_thread(CliRunner().invoke, explain_command, [*arguments, "-o", "json"])
    assert json.loads(document.stdout)["reason"] == "ClaimMissing"
