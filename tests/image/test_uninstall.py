"""`helm uninstall` on real nodes: its hook runs in a pod from the image, a running pod keeps its GPU, and Draco can come back."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from draco.maintenance.isolating.node_conditions import REASON
from tests.component.chart import rendering
from tests.component.chart.rendering import CHART
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.real_nodes.pods import DRIVER, claim, pod
from tests.image.installed import SYSTEM, helm, prepared, system_pods

IN_MAINTENANCE = "real-2"
MAINTENANCE: dict[str, Any] = {
    "apiVersion": "draco.dev/v1alpha1",
    "kind": "DeviceMaintenance",
    "metadata": {"name": "swap"},
    "spec": {"deviceSelector": {"driver": DRIVER, "pool": IN_MAINTENANCE}},
}


@pytest.fixture
def installed_again(cluster: Kubectl, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Install Draco again with its previous values; it is installed at the end, for the tests that follow."""
    values = tmp_path / "values.yaml"
    here = ("--kubeconfig", cluster.kubeconfig, "--namespace", SYSTEM)
    values.write_text(rendering.helm("get", "values", "draco", "--output", "yaml", *here).stdout)

    def install() -> None:
        done = helm(cluster, "upgrade", "--install", str(CHART), "--values", str(values))
        assert done.returncode == 0, done.stderr

    yield install
    cluster.run("delete", "devicemaintenance", "swap", "--ignore-not-found")
    if not system_pods(cluster, "operator"):
        install()


def test_an_uninstallation_waits_for_maintenance_and_leaves_a_pod_its_gpu(
    cluster: Kubectl, kube: Kubectl, installed_again: Callable[[], None]
) -> None:
    kube.apply_objects(claim("held"), pod("holder", node="real-1", claims="held"))
    kube.running("holder")
    eventually(lambda: "devices" in kube.get("resourceclaim", "held")["status"], what="the agent's word on the device")
    holder, held, devices = kube.get("pod", "holder"), kube.get("resourceclaim", "held"), kube.devices("held")
    cluster.apply_objects(MAINTENANCE)
    eventually(lambda: is_in_maintenance(cluster), what="the GPU is in maintenance")
    eventually(lambda: maintenance_conditions(cluster), what="the node says so to those who remove nodes")

    refused = helm(cluster, "uninstall")
    assert refused.returncode != 0
    assert re.search(
        r"devices? in maintenance \(real-2/gpu-0.*would return to service unverified", refused.stdout + refused.stderr
    )
    assert system_pods(cluster, "operator")
    assert is_in_maintenance(cluster)

    cluster.run("delete", "devicemaintenance", "swap")
    done = helm(cluster, "uninstall")
    assert done.returncode == 0, done.stderr
    eventually(lambda: has_no_pods(cluster), what="no pod of Draco's")
    assert cluster.objects("resourceslices") == []
    assert cluster.objects("devicetaintrules") == []
    assert cluster.objects("leases", namespace=SYSTEM) == []
    assert maintenance_conditions(cluster) == []
    left = kube.get("resourceclaim", "held")["status"]
    assert left == {key: each for key, each in held["status"].items() if key != "devices"}
    assert containers(kube.get("pod", "holder")) == containers(holder)

    installed_again()
    eventually(lambda: prepared(cluster, "real-1") == 1, what="the next agent knows the claim that is in use")
    assert kube.devices("held") == devices
    kube.run("delete", "pod", "holder", "--grace-period=1")
    eventually(lambda: prepared(cluster, "real-1") == 0, what="the claim is given up when its pod ends")


def is_in_maintenance(cluster: Kubectl) -> bool:
    return bool(cluster.get("devicemaintenance", "swap").get("status", {}).get("phase") == "InMaintenance")


def has_no_pods(cluster: Kubectl) -> bool:
    left = {
        each["metadata"]["name"]: (each["status"]["phase"], each["metadata"].get("deletionTimestamp"))
        for each in cluster.objects("pods", namespace=SYSTEM)
    }
    assert not left, left
    return True


def containers(pod: dict[str, Any]) -> list[tuple[str, int]]:
    """The running containers and their restart counts, without device health."""
    return [(each["containerID"], each["restartCount"]) for each in pod["status"]["containerStatuses"]]


def maintenance_conditions(cluster: Kubectl) -> list[dict[str, Any]]:
    """Draco's conditions on the request's node, for tools that remove nodes."""
    node = cluster.get("node", IN_MAINTENANCE)
    return [each for each in node["status"]["conditions"] if each["reason"] == REASON]
