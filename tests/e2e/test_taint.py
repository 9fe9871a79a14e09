"""`draco taint` on a whole cluster: its preview of NoExecute matches what Kubernetes does."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import provider
from tests.e2e.conftest import draco
from tests.e2e.kubectl import Kubectl, eventually

KEY = "example.com/suspect"
Json = dict[str, Any]


@pytest.fixture
def clean(kube: Kubectl) -> Iterator[Kubectl]:
    """Kubectl. Afterwards nothing is tainted."""
    yield kube
    kube.run("delete", "devicetaintrules", "--all")


def a_claim(name: str, **toleration: str | int) -> Json:
    exactly: Json = {"deviceClassName": "gpu.nvidia.com"}
    if toleration:
        exactly["tolerations"] = [{"operator": "Exists", **toleration}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def a_pod(name: str, *claims: str, limits: Json | None = None) -> Json:
    used = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    container = {"name": "main", "image": "busybox:1.37", "command": ["sleep", "infinity"]}
    resources = {"claims": [{"name": claim} for claim in claims], "limits": limits or {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "victim"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": used,
            "containers": [{**container, "resources": resources}],
        },
    }


def taint(kube: Kubectl, *arguments: str) -> str:
    done = draco("taint", *arguments, kubeconfig=kube.kubeconfig)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rule_of(kube: Kubectl, pool: str, device: str) -> Json:
    """The one rule for a device."""
    (rule,) = [
        each
        for each in kube.objects("devicetaintrules")
        if (each["spec"]["deviceSelector"]["pool"], each["spec"]["deviceSelector"]["device"]) == (pool, device)
    ]
    return rule


def evictions_over(kube: Kubectl, pool: str, device: str) -> bool:
    """Whether Kubernetes reports on the device's rule that it deletes no more pods."""
    conditions = rule_of(kube, pool, device).get("status", {}).get("conditions", [])
    return any((each["type"], each["status"]) == ("EvictionInProgress", "False") for each in conditions)


@pytest.mark.since(36)  # compared with this version's eviction controller
def test_the_pods_that_a_preview_names_are_those_that_go(clean: Kubectl) -> None:
    kube = clean
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all-of-them"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "victim"}}},
    }
    kube.apply_objects(
        budget,
        a_claim("plain"),
        a_claim("stays", effect="NoExecute"),
        a_claim("patient", effect="NoExecute", tolerationSeconds=3600),
        a_claim("any-effect", key=KEY),
        a_pod("one-of-two", "plain"),
        a_pod("two-of-two", "plain"),
        a_pod("stays", "stays"),
        a_pod("patient", "patient"),
        a_pod("any-effect", "any-effect"),
        a_pod("classic", limits={"nvidia.com/gpu": 1}),
    )
    pods = ("one-of-two", "two-of-two", "stays", "patient", "any-effect", "classic")
    kube.running(*pods)
    generated = kube.get("pod", "classic")["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    devices = [
        "/".join(device)
        for claim in ("plain", "stays", "patient", "any-effect", generated)
        for device in kube.devices(claim)
    ]
    assert len(devices) == 5
    (plain,) = kube.devices("plain")

    (view,) = json.loads(taint(kube, "preview", *devices, f"{KEY}:NoExecute", "-o", "json"))["taintRules"]
    predicted = {name.rpartition("/")[2] for name in view["evicted"]}
    overlooked = {"classic"} if provider.MINOR < 37 else set[str]()
    assert predicted == {"one-of-two", "two-of-two", "any-effect", "patient", "classic"} - overlooked
    assert {name.rpartition("/")[2] for name in view["pods"]} == set(pods)
    assert ("classic yourself" in view["message"]) == bool(overlooked)
    assert [name.rpartition("/")[2] for name in view["budgets"]] == ["all-of-them"]

    held = kube.devices("stays") + kube.devices(generated)
    taint(kube, "add", "--yes", *devices, f"{KEY}:NoExecute")
    left = {"stays", "patient"} | overlooked  # the patient pod's hour is not over
    eventually(
        lambda: {each["metadata"]["name"] for each in kube.objects("pods")} == left, what="the others are deleted"
    )
    for device in held:
        eventually(lambda device=device: evictions_over(kube, *device), what=f"Kubernetes is done with {device}")
    assert {each["metadata"]["name"] for each in kube.objects("pods")} == left
    name = rule_of(kube, *plain)["metadata"]["name"]
    eventually(
        lambda: "deletes no pod" in kube.run("describe", "devicetaintrule", name).stdout,
        what="its Event says that nobody is left",
    )
    taint(kube, "remove", *devices, KEY)
    assert not kube.objects("devicetaintrules")
