"""Shares of GPUs, from a SharingPolicy to pods and back: real scheduler, operator and agents; NVML is simulated."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.resources.api.slices import Device
from draco.resources.names import UNSETTLED_WITHDRAWN
from draco.sharing.terms import terms_of
from tests.commitments import overcommitted
from tests.e2e import provider
from tests.e2e.claim_history import ClaimHistory
from tests.e2e.conftest import EXAMPLES, draco
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.partitions import NODE

Example = Callable[..., None]

# Kubernetes keeps what a device says of shares since 1.36.
pytestmark = pytest.mark.since(36)

POLICY = "shared-gpu"
UUID = "device.attributes['gpu.nvidia.com'].uuid"
BY_COUNT = {"spec": {"mode": "Count", "count": 2, "step": None}}


@pytest.fixture
def shared(kube: Kubectl) -> Iterator[Kubectl]:
    """Kubectl, with gpu-0 of one node shared by memory. The next test finds every GPU unshared."""
    gpu = eventually(lambda: published(kube), what="gpu-0 is published")
    uuid = gpu["attributes"]["uuid"]["string"]
    share(kube, [uuid], mode="Memory", step="1Gi")
    eventually(lambda: published(kube).get("allowMultipleAllocations"), what="gpu-0 is published for several claims")
    yield kube
    kube.run("delete", "pods,resourceclaims", "--all", "--wait=true")
    kube.run("delete", "sharingpolicy", POLICY)
    eventually(lambda: not published(kube).get("allowMultipleAllocations"), what="gpu-0 is published for one claim")


def share(kube: Kubectl, uuids: Sequence[str], **spec: Any) -> None:
    selector = f"{UUID} in {json.dumps(list(uuids))}"
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


def a_claim(name: str, memory: str = "", selector: str = "device.allowMultipleAllocations") -> dict[str, Any]:
    """A claim for a share of a GPU, with this much memory or with the default."""
    wanted: dict[str, Any] = {
        "deviceClassName": "gpu.nvidia.com",
        "selectors": [{"cel": {"expression": selector}}],
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


@pytest.mark.simulated_nodes
def test_a_share_that_is_exceeded_is_found_and_each_claim_shows_its_own_use(shared: Kubectl) -> None:
    kube = shared
    ask(kube, "10Gi", "small", "greedy")
    kube.running("small", "greedy")
    for name, memory_mib in (("small", 4096), ("greedy", 20480)):
        uid = kube.get("pod", name)["metadata"]["uid"]
        uses = ("--container", "main", "--memory", str(memory_mib), "--utilization", "30")
        gpu("hold", NODE, "0", "--pod-uid", uid, "--pod", name, *uses)
    try:
        rows = eventually(lambda: used(kube), within_s=60, what="both claims use the GPU")
        assert rows == {"small": 4096 << 20, "greedy": 20480 << 20}
        note = eventually(lambda: " ".join(kube.notes("greedy")), within_s=60, what="the greedy claim is told")
        assert "gpu-0 of" in note
        assert "use more memory than the 10Gi that the claim asked for. Most of it is used in container main" in note
        assert kube.notes("small") == []
    finally:
        for process in held(0):
            gpu("release", NODE, str(process["pid"]))


def gpu(command: str, *arguments: str) -> str:
    """Run `draco cluster gpu`; returns its output."""
    done = draco("cluster", "gpu", command, *arguments, "--name", provider.CLUSTER)
    assert done.returncode == 0, done.stderr
    return done.stdout


def held(number: int) -> list[dict[str, Any]]:
    """The processes on a GPU of the node."""
    shown: dict[str, Any] = json.loads(gpu("show", NODE, "-o", "json"))
    processes: list[dict[str, Any]] = shown["gpus"][number]["processes"]
    return processes


def used(kube: Kubectl) -> dict[str, int] | None:
    """The memory that the claims use according to `draco top`, once both have processes."""
    namespace = kube.get("pod", "small")["metadata"]["namespace"]
    done = draco("top", "-n", namespace, "-o", "json", kubeconfig=kube.kubeconfig)
    assert done.returncode == 0, done.stderr
    rows = {row["claim"]: row for row in json.loads(done.stdout)["rows"]}
    if len(rows) < 2 or not all(row["processes"] for row in rows.values()):
        return None
    return {name: row["memoryUsedBytes"] for name, row in rows.items()}


def test_a_gpu_in_use_keeps_its_form_and_the_policy_says_for_whom_it_waits(shared: Kubectl) -> None:
    kube = shared
    ask(kube, "10Gi", "small")
    kube.running("small")
    kube.run("patch", "sharingpolicy", POLICY, "--type=merge", "-p", json.dumps(BY_COUNT))
    name = f"{kube.get('resourceclaim', 'small')['metadata']['namespace']}/small"
    eventually(lambda: f"waits for claim {name}" in says(kube), what="the policy says for whom it waits")
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


def test_pods_of_the_device_plugin_get_shares_for_the_name_of_shared_gpus(shared: Kubectl, tmp_path: Path) -> None:
    kube = shared
    kube.run("patch", "sharingpolicy", POLICY, "--type=merge", "-p", json.dumps(BY_COUNT))
    eventually(lambda: "shares" in published(kube).get("capacity", {}), what="gpu-0 is shared by number")
    replicas = {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}
    (tmp_path / "config.json").write_text(json.dumps({"version": "v1", "sharing": {"timeSlicing": replicas}}))
    converted = json.loads(draco("migrate", "sharing", str(tmp_path / "config.json"), "-o", "json").stdout)
    classes = [each for each in converted["items"] if each["kind"] == "DeviceClass"]
    kube.apply_objects(*classes)
    try:
        for name in ("one", "two"):
            pod = a_pod(name)
            del pod["spec"]["resourceClaims"]
            pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu.shared": 1}}
            kube.apply_objects(pod)
        kube.running("one", "two")
        (device,) = {
            (one["pool"], one["device"])
            for claim in kube.objects("resourceclaims")
            for one in claim["status"]["allocation"]["devices"]["results"]
        }
        assert device == (NODE, "gpu-0")
    finally:
        kube.run("delete", "pods", "--all", "--wait=true")
        kube.run("delete", "deviceclass", *(each["metadata"]["name"] for each in classes))


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


def test_a_taint_keeps_shares_and_turns_new_ones_away(shared: Kubectl) -> None:
    kube = shared
    ask(kube, "10Gi", "before")
    kube.running("before")
    kube.run_with_input(provider.suited((EXAMPLES / "taint-one-gpu" / "rule.yaml").read_text()), "apply", "-f", "-")
    try:
        ask(kube, "10Gi", "after")
        note = eventually(lambda: " ".join(kube.notes("after")), what="the claim that waits is explained")
        assert "example.com/suspect" in note
        assert kube.phase("before") == "Running"
    finally:
        kube.run("delete", "devicetaintrule", "suspect-gpu")
    kube.running("after")


def test_a_maintenance_waits_for_every_share(shared: Kubectl) -> None:
    kube = shared
    ask(kube, "10Gi", "one", "two")
    kube.running("one", "two")

    def status() -> dict[str, Any]:
        return dict(kube.get("devicemaintenance", "mend").get("status", {}))

    def used_by() -> list[str]:
        return [claim for device in status().get("devices", []) for claim in device.get("claims", [])]

    selector = {"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
    kube.apply_objects(
        {
            "apiVersion": "draco.dev/v1alpha1",
            "kind": "DeviceMaintenance",
            "metadata": {"name": "mend"},
            "spec": {"deviceSelector": selector},
        }
    )
    try:
        eventually(lambda: len(used_by()) == 2, what="both claims are named")
        kube.run("delete", "pod", "one", "--wait=true")
        kube.run("delete", "resourceclaim", "one", "--wait=true")
        eventually(lambda: len(used_by()) == 1, what="the claim that is left is named")
        assert status()["inUse"] == 1
        kube.run("delete", "pod", "two", "--wait=true")
        kube.run("delete", "resourceclaim", "two", "--wait=true")
        eventually(lambda: status().get("phase") == "InMaintenance", what="the GPU is free for maintenance")
    finally:
        kube.run("delete", "devicemaintenance", "mend", "--wait=true")


def test_the_example_gives_two_claims_10_gib_each(kube: Kubectl, example: Example) -> None:
    example("shares", "policy.yaml")
    eventually(lambda: published(kube).get("allowMultipleAllocations"), what="gpu-0 is shared")
    example("shares", "pods.yaml")
    kube.running("small-model", "other-model")
    assert [results(kube, claim)[0]["consumedCapacity"] for claim in ("small-model", "other-model")] == [
        {"memory": "10Gi"}
    ] * 2
    kube.run("delete", "pods,resourceclaims", "--all", "--wait=true")
    kube.run("delete", "sharingpolicy", "by-memory")
    eventually(lambda: not published(kube).get("allowMultipleAllocations"), what="gpu-0 is published for one claim")


MEMORY = ("10Gi", "", "30Gi", "60Gi")
FORMS: list[dict[str, Any] | None] = [
    {"mode": "Memory", "step": "1Gi"},
    {"mode": "Count", "count": 2},
    None,
    {"mode": "Memory", "step": "4Gi", "default": "8Gi"},
    {"mode": "Unlimited"},
    None,
]


def mode_of(device: dict[str, Any]) -> str:
    """The mode in which a device is published; "" for one claim alone."""
    terms = terms_of(msgspec.convert(device, Device))
    return str(terms.mode) if terms is not None else ""


def begins_to_change(device: dict[str, Any], mode: str) -> bool:
    """Whether a device has the taint that goes before a change, or has changed already."""
    return mode_of(device) == mode or any(each.get("value") == UNSETTLED_WITHDRAWN for each in device.get("taints", []))


def test_at_no_moment_is_more_taken_of_a_gpu_than_it_has_while_its_policy_changes(kube: Kubectl) -> None:
    """Claims arrive before the GPU changes, while it is about to, and later; one of them stays over the next change.

    gpu-1 belongs to the same policy and is free: once it has changed, gpu-0 would have, too.
    """
    eventually(lambda: published(kube) and published(kube, "gpu-1"), what="the GPUs are published")
    uuids = [published(kube, name)["attributes"]["uuid"]["string"] for name in ("gpu-0", "gpu-1")]
    history = ClaimHistory(kube)
    modes, staying = set(), ""
    with history.followed():
        for number, form in enumerate(FORMS):
            mode = str(form["mode"]) if form else ""
            kube.run("delete", "sharingpolicy", POLICY, "--ignore-not-found")
            if form is not None:
                share(kube, uuids, **form)
            if number % 3 == 1:
                eventually(
                    lambda mode=mode: begins_to_change(published(kube, "gpu-1"), mode), what=f"it becomes {mode}"
                )
            elif number % 3 == 2:
                eventually(lambda mode=mode: mode_of(published(kube, "gpu-1")) == mode, what=f"it is {mode}")
            names = [f"c{number}-{memory.lower() or 'all'}" for memory in MEMORY]
            for name, memory in zip(names, MEMORY, strict=True):
                kube.apply_objects(a_claim(name, memory, f"{UUID} == '{uuids[0]}'"), a_pod(name))
            eventually(lambda mode=mode: mode_of(published(kube, "gpu-1")) == mode, what=f"gpu-1 is {mode}")
            release(kube, staying)
            allocated = eventually(
                lambda names=tuple(names): [name for name in names if results(kube, name)], what="a claim is allocated"
            )
            modes.add(mode_of(published(kube)))
            staying = allocated[0]
            release(kube, *(name for name in names if name != staying))
        release(kube, staying)
    kube.run("delete", "sharingpolicy", POLICY, "--ignore-not-found")
    eventually(lambda: not mode_of(published(kube)), what="gpu-0 is published for one claim")
    wrong = {each for state in history.results() for each in overcommitted(state, {"memory": "81559Mi", "shares": "2"})}
    assert wrong == set()
    assert {"", "Memory", "Count"} <= modes


def release(kube: Kubectl, *claims: str) -> None:
    if names := [each for each in claims if each]:
        kube.run("delete", "pods", *names, "--wait=true")
        kube.run("delete", "resourceclaims", *names, "--wait=true")


def test_the_driver_holds_shares_to_their_memory_where_it_can(kube: Kubectl) -> None:
    """The pod does not start: simulated nodes have no driver root with NVIDIA's hook."""
    eventually(lambda: published(kube), what="gpu-0 is published")
    uuid = published(kube)["attributes"]["uuid"]["string"]

    def held_by() -> str:
        return str(published(kube)["attributes"].get("draco.dev/memoryLimit", {}).get("string"))

    share(kube, [uuid], mode="Memory", step="1Gi", enforcement="DriverLimit")
    eventually(lambda: "cannot enforce spec.enforcement DriverLimit" in says(kube), what="an old driver is told")
    assert not mode_of(published(kube))
    by_hand = draco("cluster", "gpu", "reload-driver", NODE, "--version", "615", "--name", provider.CLUSTER)
    assert by_hand.returncode == 0, by_hand.stderr
    try:
        eventually(lambda: mode_of(published(kube)) == "Memory", what="gpu-0 is shared")
        assert held_by() == "driver"
        ask(kube, "10Gi", "limited")
        eventually(lambda: results(kube, "limited"), what="the claim is allocated")
        kube.run("patch", "sharingpolicy", POLICY, "--type=merge", "-p", '{"spec": {"enforcement": "None"}}')
        eventually(lambda: "waits for claim" in says(kube), what="the policy says for whom it waits")
        assert held_by() == "driver"
        release(kube, "limited")
        eventually(lambda: held_by() == "none", what="gpu-0 is shared without limits")
    finally:
        kube.run("delete", "pods,resourceclaims", "--all", "--wait=true")
        kube.run("delete", "sharingpolicy", POLICY, "--ignore-not-found")
        draco("cluster", "gpu", "reload-driver", NODE, "--version", "580", "--name", provider.CLUSTER)
        eventually(lambda: published(kube) and not mode_of(published(kube)), what="gpu-0 is published for one claim")
