"""Every example, applied as a user applies it, does what its line in the README says."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from draco.allocation.configurations import TimeSlice
from tests.e2e.conftest import EXAMPLES, draco
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.provider import CLUSTER, NODES

Example = Callable[..., None]


def test_every_example_has_a_line_in_the_readme() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    readme = (EXAMPLES / "README.md").read_text()
    assert {name for name in folders if f"| [{name}]({name}) |" in readme} == folders


@pytest.mark.any_gpu
def test_one_gpu_is_allocated_by_memory(kube: Kubectl, example: Example) -> None:
    example("one-gpu-by-memory")
    kube.running("one-gpu")
    assert len(kube.devices("one-gpu")) == 1
    eventually(
        lambda: ready_devices(kube, "one-gpu") == kube.devices("one-gpu"), what="the agent reports the device Ready"
    )


@pytest.mark.any_gpu
def test_a_class_of_big_gpus_needs_no_cel_from_its_users(kube: Kubectl, example: Example) -> None:
    example("high-memory-class")
    kube.running("training")
    assert len(kube.devices("training")) == 1


@pytest.mark.any_gpu
def test_two_containers_share_one_gpu(kube: Kubectl, example: Example) -> None:
    example("two-containers-one-gpu")
    kube.running("server-and-sidecar")
    pod = kube.get("pod", "server-and-sidecar")
    assert [status["ready"] for status in pod["status"]["containerStatuses"]] == [True, True]
    assert len(kube.devices("shared-in-pod")) == 1


@pytest.mark.any_gpu
def test_two_pods_share_one_gpu(kube: Kubectl, example: Example) -> None:
    example("two-pods-one-gpu")
    kube.running("first", "second")
    claim = kube.get("resourceclaim", "shared-by-pods")
    assert {consumer["name"] for consumer in claim["status"]["reservedFor"]} == {"first", "second"}
    assert len(kube.devices("shared-by-pods")) == 1


@pytest.mark.any_gpu
def test_two_pods_take_turns_with_the_time_slice_that_they_ask_for(kube: Kubectl, example: Example) -> None:
    example("time-slices")
    kube.running("first", "second")
    [(node, device)] = kube.devices("taking-turns")

    def time_slice() -> int:
        shown = draco("cluster", "gpu", "show", node, "--name", CLUSTER, "-o", "json")
        assert shown.returncode == 0, shown.stdout + shown.stderr
        return int(json.loads(shown.stdout)["gpus"][int(device.removeprefix("gpu-"))].get("time_slice", 0))

    assert time_slice() == TimeSlice.LONG
    kube.run("delete", "pod", "first", "second", "--wait=false")
    eventually(lambda: time_slice() == TimeSlice.DEFAULT, what="the time slice is taken back")


@pytest.mark.any_gpu
def test_a_template_gives_each_replica_a_gpu_of_its_own(kube: Kubectl, example: Example) -> None:
    example("template-per-pod")
    eventually(
        lambda: [pod["status"].get("phase") for pod in kube.objects("pods")] == ["Running"] * 3,
        what="three replicas run",
    )
    devices = [device for claim in kube.objects("resourceclaims") for device in kube.devices(claim["metadata"]["name"])]
    assert len(devices) == len(set(devices)) == 3


@pytest.mark.any_gpu
def test_each_container_has_a_gpu_of_its_own(kube: Kubectl, example: Example) -> None:
    example("gpu-per-container")
    kube.running("side-by-side")
    claims = [claim["metadata"]["name"] for claim in kube.objects("resourceclaims")]
    assert len(claims) == len({device for claim in claims for device in kube.devices(claim)}) == 2


@pytest.mark.any_gpu
def test_a_container_has_two_gpus_of_one_node(kube: Kubectl, example: Example) -> None:
    example("two-gpus-one-container")
    kube.running("two-gpus")
    (claim,) = kube.objects("resourceclaims")
    devices = kube.devices(claim["metadata"]["name"])
    assert len(set(devices)) == 2
    assert len({node for node, _ in devices}) == 1


@pytest.mark.any_gpu
def test_a_job_gets_a_gpu_of_the_model_it_asks_for(kube: Kubectl, example: Example) -> None:
    example("job-with-template")
    eventually(lambda: [pod["status"].get("phase") for pod in kube.objects("pods")] == ["Running"], what="the Job runs")
    (claim,) = kube.objects("resourceclaims")
    assert len(kube.devices(claim["metadata"]["name"])) == 1


@pytest.mark.any_gpu
def test_two_containers_share_the_gpu_that_a_template_claims_for_their_pod(kube: Kubectl, example: Example) -> None:
    example("two-containers-by-template")
    kube.running("left-and-right")
    pod = kube.get("pod", "left-and-right")
    assert [status["ready"] for status in pod["status"]["containerStatuses"]] == [True, True]
    (claim,) = kube.objects("resourceclaims")
    assert len(kube.devices(claim["metadata"]["name"])) == 1


@pytest.mark.any_gpu
def test_a_prioritized_list_takes_the_best_there_is(kube: Kubectl, example: Example) -> None:
    example("prioritized-list")
    kube.running("best-available")
    results = kube.get("resourceclaim", "best-available")["status"]["allocation"]["devices"]["results"]
    assert [result["request"] for result in results] == ["gpu/h100"]


@pytest.mark.any_gpu
def test_the_extended_resource_is_served_by_dra(kube: Kubectl, example: Example) -> None:
    example("extended-resource")
    kube.running("classic")
    generated = kube.get("pod", "classic")["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    assert len(kube.devices(generated)) == 1


def test_admin_access_sees_every_gpu_of_a_node_while_others_use_them(
    kube: Kubectl, example: Example, tmp_path: Path
) -> None:
    example("one-gpu-by-memory")
    kube.running("one-gpu")
    (in_use,) = kube.devices("one-gpu")
    kube.run("cordon", other_node(in_use[0]))
    try:
        example("admin-access")
        admin = kube.in_namespace("gpu-admin", tmp_path)
        admin.running("monitor")
        assert in_use in admin.devices("all-gpus")
        assert len(admin.devices("all-gpus")) == 8
    finally:
        kube.run("uncordon", other_node(in_use[0]))
    assert kube.phase("one-gpu") == "Running"


def test_a_taint_on_one_gpu_keeps_its_pod_and_turns_new_ones_away(kube: Kubectl, example: Example) -> None:
    tainted = (NODES[0], "gpu-0")
    holder = fill_node(kube, "holder", node=NODES[0], gpus=8)
    kube.running(*holder)
    (on_tainted,) = [pod for pod in holder if kube.devices(pod) == [tainted]]
    example("taint-one-gpu", "rule.yaml")
    kube.run("delete", "pod", *(pod for pod in holder if pod != on_tainted), "--wait=false")
    assert kube.phase(on_tainted) == "Running"

    kube.run("delete", "pod", on_tainted, "--wait=true")
    eventually(lambda: kube.devices(on_tainted) == [], what="the tainted GPU is free")
    newcomers = fill_node(kube, "newcomer", node=NODES[0], gpus=8)
    eventually(
        lambda: sorted(kube.phase(pod) for pod in newcomers) == ["Pending"] + ["Running"] * 7,
        what="seven newcomers run and one waits",
    )
    assert tainted not in [device for pod in newcomers for device in kube.devices(pod)]

    example("taint-one-gpu", "tolerating-pod.yaml")
    kube.running("diagnose")
    assert kube.devices("diagnose") == [tainted]


def test_one_gpu_of_eight_is_maintained_while_seven_work(kube: Kubectl, example: Example) -> None:
    maintained = (NODES[0], "gpu-3")
    holders = fill_node(kube, "holder", node=NODES[0], gpus=8)
    kube.running(*holders)
    (on_maintained,) = [pod for pod in holders if kube.devices(pod) == [maintained]]

    example("maintain-one-gpu")
    eventually(lambda: maintenance_phase(kube, "mend-gpu-3") == "Isolated", what="the GPU is isolated while in use")
    assert kube.phase(on_maintained) == "Running"
    kube.run("delete", "pod", *holders, "--wait=true")
    eventually(lambda: maintenance_phase(kube, "mend-gpu-3") == "InMaintenance", what="the GPU is free to be worked on")

    newcomers = fill_node(kube, "newcomer", node=NODES[0], gpus=8)
    eventually(
        lambda: sorted(kube.phase(pod) for pod in newcomers) == ["Pending"] + ["Running"] * 7,
        what="the other seven keep taking work",
    )
    node = kube.get("node", NODES[0])
    assert not node["spec"].get("unschedulable")
    assert not node["spec"].get("taints")

    kube.run("patch", "devicemaintenance", "mend-gpu-3", "--type=merge", "-p", '{"spec":{"finished":true}}')
    eventually(lambda: maintenance_phase(kube, "mend-gpu-3") == "Completed", what="the request is completed")
    kube.running(*newcomers)
    assert maintained in [device for pod in newcomers for device in kube.devices(pod)]


def test_deleting_a_maintenance_request_gives_the_device_back(kube: Kubectl, example: Example) -> None:
    example("maintain-one-gpu")
    eventually(lambda: maintenance_phase(kube, "mend-gpu-3") == "InMaintenance", what="the GPU is in maintenance")
    kube.run("delete", "devicemaintenance", "mend-gpu-3")
    eventually(lambda: not kube.objects("devicetaintrules"), what="no rule is left")


def test_a_gpu_is_emptied_as_budgets_allow_and_its_neighbours_stay(kube: Kubectl, example: Example) -> None:
    maintained = (NODES[0], "gpu-1")
    holders = fill_node(kube, "holder", node=NODES[0], gpus=8)
    kube.running(*holders)
    (leaves,) = [pod for pod in holders if kube.devices(pod) == [maintained]]
    example("evict-from-one-gpu")
    eventually(
        lambda: maintenance_phase(kube, "empty-gpu-1") == "InMaintenance", what="the GPU is free to be worked on"
    )
    assert leaves not in {pod["metadata"]["name"] for pod in kube.objects("pods")}
    assert {kube.phase(pod) for pod in holders if pod != leaves} == {"Running"}


def test_maintenance_waits_for_approval_and_its_window(kube: Kubectl, example: Example) -> None:
    example("maintain-in-a-window")
    eventually(lambda: maintenance_phase(kube, "update-gpu-2") == "Rehearsed", what="it is rehearsed and waits")
    assert not kube.objects("devicetaintrules")
    assert (
        "draco maintain approve update-gpu-2"
        in draco("maintain", "status", "update-gpu-2", kubeconfig=kube.kubeconfig).stdout
    )


def test_a_budget_says_how_much_may_be_out_of_service(kube: Kubectl, example: Example) -> None:
    example("maintenance-budget")
    eventually(
        lambda: [each.get("status", {}).get("devices") for each in kube.objects("maintenancebudgets")] == [16, 16],
        what="the operator counts the GPUs that the budgets are about",
    )


def test_a_foreign_driver_is_explained_and_maintained_and_left_alone(kube: Kubectl, example: Example) -> None:
    example("foreign-driver", "devices.yaml", "maintenance.yaml")
    before = kube.get("resourceslice", "gpu-example-com-rack-1")["metadata"]["resourceVersion"]
    eventually(lambda: maintenance_phase(kube, "recable-card-0") == "InMaintenance", what="the card is in maintenance")

    example("foreign-driver", "pending-pod.yaml")
    (note,) = eventually(lambda: kube.notes("both-cards"), what="an Event says why the claim waits")
    assert "draco.dev/maintenance" in note
    assert kube.phase("both-cards") == "Pending"
    assert kube.get("resourceslice", "gpu-example-com-rack-1")["metadata"]["resourceVersion"] == before


@pytest.mark.any_gpu
def test_a_pod_that_asks_for_a_little_too_much_runs_with_what_it_is_told(kube: Kubectl, example: Example) -> None:
    example("almost-enough-memory")
    (note,) = eventually(lambda: kube.notes("almost"), what="an Event says why the claim waits")
    assert "81559Mi" in note
    assert kube.phase("almost") == "Pending"
    manifest = (EXAMPLES / "almost-enough-memory" / "pod.yaml").read_text().replace("'80Gi'", "'79Gi'")
    kube.run_with_input(manifest, "replace", "--force", "--grace-period=1", "-f", "-")
    kube.running("almost")


@pytest.mark.any_gpu
def test_a_claim_that_names_no_class_is_told_so(kube: Kubectl) -> None:
    kube.run_with_input(claim_and_pod("typo", device_class="gpu.nvidia.co"), "apply", "-f", "-")
    (note,) = eventually(lambda: kube.notes("typo"), what="an Event says why the claim waits")
    assert "gpu.nvidia.co" in note
    assert "gpu.nvidia.com" in note


@pytest.mark.any_gpu
def test_a_claim_that_no_device_matches_is_told_what_there_is(kube: Kubectl) -> None:
    cel = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('200Gi')) >= 0"
    kube.run_with_input(claim_and_pod("too-big", cel=cel), "apply", "-f", "-")
    (note,) = eventually(lambda: kube.notes("too-big"), what="an Event says why the claim waits")
    assert "200Gi" in note
    assert "81559Mi" in note


@pytest.mark.any_gpu
def test_a_malformed_quantity_in_a_selector_is_named(kube: Kubectl) -> None:
    cel = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40 GB')) >= 0"
    kube.run_with_input(claim_and_pod("misspelt", cel=cel), "apply", "-f", "-")
    (note,) = eventually(lambda: kube.notes("misspelt"), what="an Event says why the claim waits")
    assert '"40 GB" is not a quantity. Write device.capacity' in note


def ready_devices(kube: Kubectl, claim: str) -> list[tuple[str, str]]:
    """The claim's devices that their agent reports as Ready."""
    return [
        (device["pool"], device["device"])
        for device in kube.get("resourceclaim", claim)["status"].get("devices", [])
        if any(c["type"] == "Ready" and c["status"] == "True" for c in device.get("conditions", []))
    ]


def maintenance_phase(kube: Kubectl, name: str) -> str:
    """Phase of a maintenance request."""
    return str(kube.get("devicemaintenance", name).get("status", {}).get("phase", ""))


def other_node(node: str) -> str:
    """The other of the cluster's two nodes."""
    return NODES[1] if node == NODES[0] else NODES[0]


def fill_node(kube: Kubectl, prefix: str, *, node: str, gpus: int) -> list[str]:
    """Claim this many GPUs of one node, each with a claim and a pod of the same name; returns the names."""
    names = [f"{prefix}-{index}" for index in range(gpus)]
    kube.run_with_input("---".join(claim_and_pod(name, node=node) for name in names), "apply", "-f", "-")
    return names


def claim_and_pod(name: str, *, device_class: str = "gpu.nvidia.com", node: str = "", cel: str = "") -> str:
    """A claim for one device and a pod that uses it."""
    selector = f"\n  nodeSelector: {{kubernetes.io/hostname: {node}}}" if node else ""
    selectors = f", selectors: [{{cel: {{expression: {json.dumps(cel)}}}}}]" if cel else ""
    return f"""
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: {name}}}
spec: {{devices: {{requests: [{{name: gpu, exactly: {{deviceClassName: {device_class}{selectors}}}}}]}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:{selector}
  terminationGracePeriodSeconds: 0
  resourceClaims: [{{name: gpu, resourceClaimName: {name}}}]
  containers: [{{name: main, image: "busybox:1.37", command: [sleep, infinity], resources: {{claims: [{{name: gpu}}]}}}}]
"""
