"""Shares of GPUs, from a SharingPolicy to pods and back: real scheduler, operator and agents; NVML is simulated."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.partitions import NODE

Example = Callable[..., None]

# Kubernetes keeps what a device says of shares since 1.36.
pytestmark = pytest.mark.since(36)

POLICY = "shared-gpu"
BY_COUNT = {"spec": {"mode": "Count", "count": 2, "step": None}}


@pytest.fixture
def shared(kube: Kubectl) -> Iterator[Kubectl]:
    """Kubectl, with gpu-0 of one node shared by memory. The next test finds every GPU unshared."""
    gpu = eventually(lambda: published(kube), what="gpu-0 is published")
    uuid = gpu["attributes"]["uuid"]["string"]
    share(kube, mode="Memory", step="1Gi", uuid=uuid)
    eventually(lambda: published(kube).get("allowMultipleAllocations"), what="gpu-0 is published for several claims")
    yield kube
    kube.run("delete", "pods,resourceclaims", "--all", "--wait=true")
    kube.run("delete", "sharingpolicy", POLICY)
    eventually(lambda: not published(kube).get("allowMultipleAllocations"), what="gpu-0 is published for one claim")


def share(kube: Kubectl, *, uuid: str, **spec: Any) -> None:
    selector = f"device.attributes['gpu.nvidia.com'].uuid == {json.dumps(uuid)}"
    kube.apply_objects(
        {
            "apiVersion": "draco.dev/v1alpha1",
            "kind": "SharingPolicy",
            "metadata": {"name": POLICY},
            "spec": {**spec, "deviceSelectors": [{"cel": {"expression": selector}}]},
        }
    )


def published(kube: Kubectl, name: str = "gpu-0") -> dict[str, Any]:
    """A device of the node as it is published."""
    slices = [each["spec"] for each in kube.objects("resourceslices") if each["spec"]["pool"]["name"] == NODE]
    return next((device for each in slices for device in each.get("devices", []) if device["name"] == name), {})


def says(kube: Kubectl) -> str:
    """The policy's message."""
    return str(kube.get("sharingpolicy", POLICY).get("status", {}).get("message", ""))


def a_claim(name: str, memory: str = "") -> dict[str, Any]:
    """A claim for a share of a GPU, with this much memory or with the default."""
    wanted: dict[str, Any] = {
        "deviceClassName": "gpu.nvidia.com",
        "selectors": [{"cel": {"expression": "device.allowMultipleAllocations"}}],
    }
    if memory:
        wanted["capacity"] = {"requests": {"memory": memory}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}},
    }


def a_pod(name: str) -> dict[str, Any]:
    """A pod that uses the claim of its name."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [
                {"name": "main", "image": "busybox:1.37", "resources": {"claims": [{"name": "gpu"}]}},
            ],
        },
    }


def ask(kube: Kubectl, memory: str, *names: str) -> None:
    kube.apply_objects(*(made for name in names for made in (a_claim(name, memory), a_pod(name))))


def results(kube: Kubectl, claim: str) -> list[dict[str, Any]]:
    allocation = kube.get("resourceclaim", claim).get("status", {}).get("allocation")
    return allocation["devices"]["results"] if allocation else []


def reported(kube: Kubectl, claim: str) -> list[str]:
    """The shares in a claim's status."""
    return [each["shareID"] for each in kube.get("resourceclaim", claim)["status"].get("devices", [])]


def test_two_claims_of_10_gib_run_on_one_gpu_and_the_one_that_does_not_fit_is_told_why(shared: Kubectl) -> None:
    kube = shared
    ask(kube, "10Gi", "small", "other")
    kube.running("small", "other")
    both = [one for claim in ("small", "other") for one in results(kube, claim)]
    assert [(one["device"], one["consumedCapacity"]["memory"]) for one in both] == [("gpu-0", "10Gi")] * 2
    assert len({one["shareID"] for one in both}) == 2
    eventually(
        lambda: reported(kube, "small") == [one["shareID"] for one in results(kube, "small")],
        what="the agent reports the share",
    )

    ask(kube, "60Gi", "large")
    note = eventually(lambda: " ".join(kube.notes("large")), what="the claim that does not fit is explained")
    assert "short of memory: 60Gi needed, 61079Mi of 81559Mi left" in note

    kube.run("delete", "pod", "other", "--wait=true")
    kube.run("delete", "resourceclaim", "other", "--wait=true")
    kube.running("large")
    assert "1 GPU shared" in says(kube)


def test_a_gpu_in_use_keeps_its_form_and_the_policy_says_for_whom_it_waits(shared: Kubectl) -> None:
    kube = shared
    ask(kube, "10Gi", "small")
    kube.running("small")
    kube.run("patch", "sharingpolicy", POLICY, "--type=merge", "-p", json.dumps(BY_COUNT))
    name = f"{kube.get('resourceclaim', 'small')['metadata']['namespace']}/small"
    eventually(lambda: f"in use by {name}" in says(kube), what="the policy says for whom it waits")
    assert "shares" not in published(kube)["capacity"]

    kube.run("delete", "pod", "small", "--wait=true")
    kube.run("delete", "resourceclaim", "small", "--wait=true")
    eventually(lambda: "1 GPU shared" in says(kube), what="the GPU is shared by number")
    assert published(kube)["capacity"]["shares"]["value"] == "2"


def test_shares_are_counted_by_number(shared: Kubectl) -> None:
    kube = shared
    kube.run("patch", "sharingpolicy", POLICY, "--type=merge", "-p", json.dumps(BY_COUNT))
    eventually(lambda: "shares" in published(kube).get("capacity", {}), what="gpu-0 is shared by number")
    ask(kube, "", "one", "two")
    kube.running("one", "two")
    assert [results(kube, claim)[0]["consumedCapacity"] for claim in ("one", "two")] == [
        {"memory": "0", "shares": "1"}
    ] * 2
    ask(kube, "", "three")
    note = eventually(lambda: " ".join(kube.notes("three")), what="the claim that does not fit is explained")
    assert "shares" in note


def test_a_claim_may_have_several_shares_of_a_gpu_and_one_that_knows_nothing_gets_all_of_it(shared: Kubectl) -> None:
    kube = shared
    two = a_claim("two", "10Gi")
    requests = two["spec"]["devices"]["requests"]
    requests.append({**requests[0], "name": "other"})  # kube-scheduler takes each device once for one request
    kube.apply_objects(two, a_pod("two"))
    kube.running("two")
    assert len({one["shareID"] for one in results(kube, "two")}) == 2
    eventually(lambda: len(reported(kube, "two")) == 2, what="the agent reports both shares")
    kube.run("delete", "pod", "two", "--wait=true")
    kube.run("delete", "resourceclaim", "two", "--wait=true")

    ask(kube, "", "unaware")
    kube.running("unaware")
    assert results(kube, "unaware")[0]["consumedCapacity"] == {"memory": "79Gi"}
