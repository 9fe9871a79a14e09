"""Repair on a whole cluster: an idle claim is released for a pod, and is allocated elsewhere when its own pod comes."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.partitions import NODE, a_claim, a_pod, allocate, claim_name

pytestmark = [
    pytest.mark.since(35),  # partitions that are published before they exist
    pytest.mark.simulated_nodes,  # the chart's defaults: no right to release claims, which are idle after a minute
]

Example = Callable[..., None]

POLICY = "day-and-night"
IN_THE_WAY = "gpu-0-mig-1g10gb-19-0"
"""On memory units that the only partition of four slices needs."""


def published(kube: Kubectl) -> bool:
    slices = [each["spec"] for each in kube.objects("resourceslices") if each["spec"]["pool"]["name"] == NODE]
    return any(device["name"] == IN_THE_WAY for each in slices for device in each.get("devices", []))


def instances(kube: Kubectl) -> list[dict[str, Any]]:
    gpus = kube.get("gpunode", NODE)["status"]["gpus"]
    return [each for gpu in gpus for each in gpu.get("mig", {}).get("instances", [])]


def test_an_idle_claim_gives_way_to_a_pod_and_gets_another_place_for_its_own(kube: Kubectl, example: Example) -> None:
    example("mig-day-and-night", "policy.yaml")
    eventually(lambda: published(kube), what="partitions are published")
    kube.run_with_input(a_claim("ahead", "1g.10gb"), "apply", "-f", "-")
    allocate(kube, "ahead", IN_THE_WAY)
    kube.run_with_input(f"{a_claim('large', '4g.40gb')}---{a_pod('train', 'large')}", "apply", "-f", "-")
    kept = f"To let Draco release it, set spec.repair.idleClaims: Release in MigPolicy {POLICY}."
    eventually(
        lambda: any(note.endswith(kept) for note in kube.notes("large")), what="the idle claim is named, and kept"
    )
    assert kube.devices("ahead") == [(NODE, IN_THE_WAY)]
    assert kube.phase("train") == "Pending"

    patch = json.dumps({"spec": {"repair": {"idleClaims": "Release"}}})
    kube.run("patch", "migpolicy", POLICY, "--type=merge", "-p", patch)
    kube.running("train")
    assert kube.devices("large") == [(NODE, "gpu-0-mig-4g40gb-5-0")]
    assert kube.devices("ahead") == []
    eventually(lambda: any(note.startswith("Released for pod") for note in kube.notes("ahead")), what="an Event tells")
    status = kube.get("migpolicy", POLICY)["status"]
    assert f"Idle claim {claim_name(kube, 'ahead')} was released for pod" in status["message"]

    kube.run_with_input(a_pod("late", "ahead"), "apply", "-f", "-")
    kube.running("late")
    ((pool, device),) = kube.devices("ahead")
    assert pool == NODE
    assert device.startswith("gpu-0-mig-1g10gb-19-")
    assert device != IN_THE_WAY
    assert kube.phase("train") == "Running"

    kube.run("delete", "pods", "--all", "--grace-period=0", "--force")
    kube.run("delete", "resourceclaims", "--all", "--wait=true")
    kube.run("delete", "migpolicy", POLICY)
    eventually(lambda: not instances(kube) and not published(kube), what="no GPU is divided any more")
