"""Maintenance and taints cover a GPU with its partitions: real scheduler, operator and agents; NVML is simulated."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import draco
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.partitions import NODE
from tests.e2e.test_mig import ask, at_rest, gpu, parents, partitions

pytestmark = pytest.mark.since(35)  # partitions that are published before they exist

Example = Callable[..., None]

TENANTS = [f"tenant-{number}" for number in range(7)]
REQUEST = "fan-of-gpu-0"


@pytest.fixture
def clean(kube: Kubectl, example: Example) -> Iterator[Kubectl]:
    """Kubectl. Afterwards nothing is tainted, held or divided."""
    del example  # requested first, so that its objects are deleted after this
    yield kube
    kube.run("delete", "devicemaintenances,devicetaintrules", "--all")
    kube.run("delete", "pods", "--all", "--grace-period=0", "--force")
    kube.run("delete", "resourceclaims", "--all", "--wait=true")
    kube.run("delete", "migpolicies", "--all")
    eventually(lambda: at_rest(kube), what="no GPU is divided any more")


@pytest.fixture
def shared_gpu(clean: Kubectl, example: Example) -> Kubectl:
    """Seven pods, each on a partition of gpu-0."""
    example("mig-by-profile", "policy.yaml")
    eventually(lambda: partitions(clean), what="partitions are published")
    ask(clean, *TENANTS, profile="1g.10gb")
    clean.running(*TENANTS)
    assert {parent for name in TENANTS for parent in parents(clean, name)} == {"gpu-0"}
    return clean


def maintain(kube: Kubectl, device: str = "gpu-0") -> None:
    manifest = {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "DeviceMaintenance",
        "metadata": {"name": REQUEST},
        "spec": {"deviceSelector": {"driver": "gpu.nvidia.com", "pool": NODE, "device": device}},
    }
    kube.run_with_input(json.dumps(manifest), "apply", "-f", "-")


def status(kube: Kubectl) -> dict[str, Any]:
    return dict(kube.get("devicemaintenance", REQUEST).get("status", {}))


def is_ready(kube: Kubectl) -> bool:
    return any(
        each["type"] == "ReadyForWork" and each["status"] == "True" for each in status(kube).get("conditions", [])
    )


def tainted(kube: Kubectl) -> set[str]:
    """The node's devices that rules name."""
    selectors = [rule["spec"]["deviceSelector"] for rule in kube.objects("devicetaintrules")]
    return {each["device"] for each in selectors if each.get("pool") == NODE}


def of_gpu_0(kube: Kubectl) -> set[str]:
    return {"gpu-0"} | {name for name in partitions(kube) if name.startswith("gpu-0-")}


def give_up(kube: Kubectl, *names: str) -> None:
    kube.run("delete", "pods", *names, "--grace-period=0", "--force")
    kube.run("delete", "resourceclaims", *names, "--wait=true")


def test_work_on_a_gpu_waits_for_seven_partitions_and_no_new_one_is_placed_on_it(shared_gpu: Kubectl) -> None:
    kube = shared_gpu
    maintain(kube)
    eventually(lambda: status(kube).get("inUse") == 7, what="the request counts the claims on the partitions")
    eventually(lambda: status(kube)["phase"] == "Isolated", what="each of them is tainted")
    assert tainted(kube) == of_gpu_0(kube)
    assert {each["uuid"] for each in status(kube)["devices"]} == {gpu(kube)["uuid"]}
    shown = draco("status", "-o", "json", kubeconfig=kube.kubeconfig)
    (whole,) = [
        each for each in json.loads(shown.stdout)["deviceList"] if (each["node"], each["device"]) == (NODE, "gpu-0")
    ]
    assert (whole["state"], len(whole["claimsOnParts"])) == ("maintenance", 7)

    give_up(kube, *TENANTS[:3])  # gpu-0 has room again, for claims that tolerate the taint
    ask(kube, "newcomer", profile="1g.10gb")
    kube.running("newcomer")
    assert parents(kube, "newcomer") == ["gpu-1"]
    assert not is_ready(kube)
    give_up(kube, *TENANTS[3:6])
    eventually(lambda: status(kube)["inUse"] == 1, what="one claim is left")
    assert not is_ready(kube)
    give_up(kube, TENANTS[6])
    eventually(lambda: is_ready(kube), what="work can start")
    assert status(kube)["phase"] == "InMaintenance"

    kube.run("patch", "devicemaintenance", REQUEST, "--type=merge", "-p", '{"spec":{"finished":true}}')
    eventually(lambda: status(kube)["phase"] == "Completed", what="the GPU is given back")
    assert tainted(kube) == set()
    ask(kube, "again", profile="3g.40gb")
    kube.running("again")


def test_a_gpu_that_is_divided_during_the_work_stays_isolated(clean: Kubectl, example: Example) -> None:
    kube = clean
    maintain(kube)
    eventually(lambda: is_ready(kube), what="work can start on the whole GPU")
    example("mig-by-profile", "policy.yaml")
    eventually(lambda: partitions(kube), what="partitions are published")
    eventually(lambda: tainted(kube) >= of_gpu_0(kube), what="each new partition is tainted")
    ask(kube, "newcomer", profile="1g.10gb")
    kube.running("newcomer")
    assert parents(kube, "newcomer") == ["gpu-1"]
    eventually(lambda: is_ready(kube), what="work can go on")


def test_a_rule_that_evicts_from_a_gpu_evicts_from_its_partitions(shared_gpu: Kubectl) -> None:
    kube = shared_gpu
    versions = kube.run("api-versions").stdout.split()
    served = next(
        each for each in ("v1", "v1beta2", "v1alpha3") if f"resource.k8s.io/{each}" in versions and each != "v1"
    )
    rule = {
        "apiVersion": f"resource.k8s.io/{served}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "on-fire"},
        "spec": {
            "deviceSelector": {"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"},
            "taint": {"key": "example.com/on-fire", "effect": "NoExecute"},
        },
    }
    kube.run_with_input(json.dumps(rule), "apply", "-f", "-")
    eventually(lambda: tainted(kube) >= of_gpu_0(kube), what="the partitions are tainted too")
    eventually(
        lambda: not {*TENANTS} & {each["metadata"]["name"] for each in kube.objects("pods")}, what="all are evicted"
    )
    kube.run("delete", "devicetaintrule", "on-fire")
    eventually(lambda: tainted(kube) == set(), what="the extensions go with the rule")
