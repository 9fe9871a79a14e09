"""Draco on Kubernetes with default features, with device taints and without DeviceTaintRule: the taints are in the slices."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from draco_local.cluster.programs import binaries
from tests.e2e.conftest import EXAMPLES, draco
from tests.e2e.kubectl import Kubectl, eventually

pytestmark = [
    pytest.mark.since(36),  # older ones have no device taints by default
    pytest.mark.local_provider,
    pytest.mark.simulated_nodes,
]
NODE = "gpu-node-0"
REQUEST = "swap-fan"


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A separate cluster: one node with two H100s."""
    name = f"default-{os.getpid()}"
    try:
        up = draco("cluster", "up", "--name", name, "--features", "default", "--nodes", "1", "--gpus", "2")
        assert up.returncode == 0, up.stdout + up.stderr
        kubeconfig = tmp_path_factory.mktemp("cluster") / "kubeconfig"
        kubeconfig.write_text(draco("cluster", "kubeconfig", "--name", name).stdout)
        kubeconfig.chmod(0o600)
        yield Kubectl(binary=binaries.find("kubectl")["kubectl"], kubeconfig=kubeconfig)
    finally:
        down = draco("cluster", "down", "--name", name)
    assert down.returncode == 0, down.stdout + down.stderr


def ask(kube: Kubectl, name: str) -> None:
    """A pod with a whole GPU."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    kube.apply_objects(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                "containers": [
                    {
                        "name": "main",
                        "image": "busybox:1.37",
                        "command": ["sleep", "infinity"],
                        "resources": {"claims": [{"name": "gpu"}]},
                    }
                ],
            },
        },
    )


def status(kube: Kubectl) -> dict[str, Any]:
    return dict(kube.get("devicemaintenance", REQUEST).get("status", {}))


def taints(kube: Kubectl) -> dict[str, bool]:
    """Whether the slices taint each device."""
    return {
        device["name"]: bool(device.get("taints"))
        for each in kube.objects("resourceslices")
        for device in each["spec"].get("devices", [])
    }


def test_a_gpu_is_taken_out_of_service_and_given_back(kube: Kubectl) -> None:
    assert "devicetaintrules" not in kube.run("api-resources", "-o", "name").stdout
    ask(kube, "train")
    kube.running("train")
    [(_, device)] = kube.devices("train")
    kube.apply_objects(
        {
            "apiVersion": "draco.dev/v1alpha1",
            "kind": "DeviceMaintenance",
            "metadata": {"name": REQUEST},
            "spec": {"deviceSelector": {"driver": "gpu.nvidia.com", "pool": NODE, "device": device}},
        }
    )
    eventually(lambda: status(kube).get("phase") == "Isolated", what="the GPU is isolated")
    assert status(kube)["message"] == f"1 of 1 device is still in use: {device} of {NODE} by default/train."
    assert taints(kube) == {name: name == device for name in ("gpu-0", "gpu-1")}

    ask(kube, "beside")
    kube.running("beside")
    assert kube.devices("beside") != [(NODE, device)]
    kube.run("delete", "pods,resourceclaims", "train", "--grace-period=0", "--force")
    eventually(lambda: status(kube)["phase"] == "InMaintenance", what="work can start")

    ask(kube, "newcomer")
    eventually(
        lambda: "draco.dev/maintenance" in draco("explain", "claim/newcomer", kubeconfig=kube.kubeconfig).stdout,
        what="the taint is said to be in the way",
    )
    kube.run_with_input((EXAMPLES / "mig-by-profile" / "policy.yaml").read_text(), "apply", "-f", "-")
    eventually(lambda: any(name.startswith(f"{device}-mig-") for name in taints(kube)), what="partitions of the GPU")
    assert all(tainted for name, tainted in taints(kube).items() if name.startswith(device))
    assert status(kube)["phase"] == "InMaintenance"
    assert kube.phase("newcomer") == "Pending"

    kube.run("patch", "devicemaintenance", REQUEST, "--type=merge", "-p", json.dumps({"spec": {"finished": True}}))
    eventually(lambda: status(kube)["phase"] == "Completed", what="the GPU is given back")
    kube.running("newcomer")
    assert kube.devices("newcomer") == [(NODE, device)]
    assert not any(taints(kube).values())


def test_draco_taint_says_what_to_do_instead(kube: Kubectl) -> None:
    said = draco("taint", "list", kubeconfig=kube.kubeconfig)
    assert said.returncode == 1
    assert "does not serve DeviceTaintRule. A DeviceMaintenance isolates" in said.stderr
    assert "DRADeviceTaintRules" in said.stderr
