"""GPU faults on a whole cluster, each injected by the command that users type: the scheduler avoids faulty GPUs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import provider
from tests.e2e.conftest import draco
from tests.e2e.kubectl import Kubectl, eventually

Json = dict[str, Any]
NODE = provider.NODES[0]
CAUSES = {
    "xid": (("xid", "0", "95"), ("Xid95", "NoSchedule")),
    "ecc": (("ecc", "1", "--threshold"), ("EccThreshold", "NoSchedule")),
    "row-remap": (("remap", "2", "--failed"), ("RowRemapFailed", "NoSchedule")),
    "thermal": (("temperature", "3", "120"), ("ThermalSlowdown", "None")),
    "nvlink": (("nvlink", "4", "7", "--down"), ("NvLinkDown", "NoSchedule")),
    "fabric": (("fabric", "6", "failed"), ("FabricFailed", "NoSchedule")),
    "recovery": (("recovery", "5", "reset"), ("NeedsReset", "NoSchedule")),
    "unreadable": (("unreadable", "7"), ("Unreadable", "NoSchedule")),
}
"""A fault of each family, on one GPU each.

Only tests of the agent cover a lost GPU, which only a reboot ends, and a hanging call, which is noticed late.
"""


def by_hand(command: str, *arguments: str) -> None:
    done = draco("cluster", "gpu", command, NODE, *arguments, "--name", provider.CLUSTER)
    assert done.returncode == 0, done.stderr


def taints(kube: Kubectl) -> dict[str, Json]:
    """Taints of the node's whole GPUs, by number and key."""
    devices = [
        device
        for one in kube.objects("resourceslices")
        if one["spec"].get("nodeName") == NODE
        for device in one["spec"].get("devices", [])
    ]
    return {
        device["name"].removeprefix("gpu-"): {
            taint["key"]: (taint.get("value", ""), taint["effect"]) for taint in device.get("taints", [])
        }
        for device in devices
    }


def ledger(kube: Kubectl) -> dict[str, list[str]]:
    """The names of the faults that the agent has counted, by GPU."""
    return {
        gpu["device"]: [fault["name"] for fault in gpu.get("faults", [])]
        for gpu in kube.get("gpunode", NODE)["status"]["gpus"]
    }


@pytest.fixture
def healed(kube: Kubectl) -> Iterator[Kubectl]:
    """Kubectl. Afterwards every GPU is healthy again, by a repair and a reload of the driver."""
    yield kube
    for gpu in range(provider.GPUS):
        by_hand("heal", str(gpu))
    by_hand("reload-driver")
    eventually(lambda: not any(taints(kube).values()), within_s=90, what="no GPU is tainted any more")


@pytest.mark.simulated_nodes
def test_a_fault_of_each_family_is_a_taint_of_its_own_and_the_scheduler_heeds_it(healed: Kubectl) -> None:
    kube = healed
    eventually(lambda: len(taints(kube)) >= provider.GPUS, what="all GPUs are published")
    for number in range(provider.GPUS):
        by_hand("mig", str(number), "off")  # a GPU in MIG mode reports no NVLinks, and MIG mode outlives its policy
    for command, _ in CAUSES.values():
        by_hand(command[0], *command[1:])
    for family, ((_, gpu, *_), told) in CAUSES.items():
        eventually(
            lambda family=family, gpu=gpu, told=told: taints(kube)[gpu].get(f"draco.dev/{family}") == told,
            what=f"gpu-{gpu} is tainted for {family}",
        )
    eventually(
        lambda: all(name in ledger(kube)[f"gpu-{command[1]}"] for command, (name, _) in CAUSES.values()),
        what="each fault is in its GPU's ledger",
    )
    # Of this node's GPUs only the hot one may be allocated: it is slower, not faulty.
    expression = "device.attributes['resource.kubernetes.io'].pciBusID != ''"
    exactly = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    claims = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        }
        for name in ("hot", "none-left")
    ]
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": NODE},
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
        }
        for name in ("hot", "none-left")
    ]
    kube.apply_objects(claims[0], pods[0])
    kube.running("hot")
    assert [device[1] for device in kube.devices("hot")] == ["gpu-3"]
    kube.apply_objects(claims[1], pods[1])

    def refused() -> bool:
        conditions = kube.get("pod", "none-left")["status"].get("conditions", [])
        return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)

    eventually(refused, what="the scheduler has nothing for the second pod")
    view = json.loads(draco("status", "-o", "json", kubeconfig=kube.kubeconfig).stdout)
    assert "XID 95" in json.dumps(view)
