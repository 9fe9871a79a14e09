"""What a real kubelet shows of a GPU that fails under a pod, and what stays visible when the pod is gone."""

from typing import Any

import pytest

from tests.e2e.kubectl import eventually
from tests.e2e.real_nodes.partitions import gpus_by_hand
from tests.e2e.real_nodes.pods import Bench

pytestmark = pytest.mark.real_node


def shown(bench: Bench, name: str) -> dict[str, Any]:
    """The health of the pod's only device in its status."""
    for container in bench.kube.get("pod", name)["status"].get("containerStatuses", []):
        for resource in container.get("allocatedResourcesStatus", []):
            for one in resource.get("resources", []):
                return dict(one)
    return {}


def of_claim(bench: Bench, name: str) -> dict[str, tuple[str, str]]:
    devices = bench.kube.get("resourceclaim", name)["status"].get("devices", [])
    return {one["type"]: (one["status"], one["reason"]) for device in devices for one in device.get("conditions", [])}


def notes_of(bench: Bench) -> list[str]:
    """Notes of the Events about faults on the node."""
    return [
        one.get("note", "")
        for one in bench.kube.objects("events.events.k8s.io", namespace="default")
        if one["regarding"].get("name") == bench.node and one.get("reason") == "GpuFault"
    ]


def test_a_fault_shows_in_the_pods_status_and_its_claims_and_an_event_of_it_outlives_both(bench: Bench) -> None:
    bench.start("worker")
    number = bench.device("worker").removeprefix("gpu-")
    eventually(lambda: shown(bench, "worker").get("health") == "Healthy", what="kubelet shows the GPU's health")
    gpus_by_hand(bench, "recovery", number, "reset")
    try:
        eventually(lambda: shown(bench, "worker").get("health") == "Unhealthy", what="the pod's status says it")
        eventually(
            lambda: of_claim(bench, "worker").get("Healthy") == ("False", "NeedsReset"), what="so does the claim"
        )
        bench.kube.run("delete", "pod", "worker")
        # Kubernetes deallocates an unused claim, and the API server then drops its device statuses.
        eventually(
            lambda: any("NeedsReset" in note for note in notes_of(bench)), what="an Event of the Node still tells of it"
        )
    finally:
        gpus_by_hand(bench, "recovery", number, "none")
