"""Draco as helm installed it on the cluster of these tests."""

import subprocess
from typing import Any

from tests.component.chart import rendering
from tests.e2e.kubectl import Kubectl

SYSTEM = "draco-system"
NODES, GPUS = 2, 2


def system_pods(cluster: Kubectl, component: str) -> list[dict[str, Any]]:
    """The pods of the operator or of the agent."""
    return cluster.objects("pods", namespace=SYSTEM, labels=f"app.kubernetes.io/component={component}")


def helm(cluster: Kubectl, verb: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run helm for the release and wait for it; a failure does not raise."""
    here = ("--kubeconfig", cluster.kubeconfig, "--namespace", SYSTEM, "--wait", "--timeout", "180s")
    return rendering.helm(verb, "draco", *arguments, *here)


def prepared(cluster: Kubectl, node: str) -> int:
    """How many claims the node's agent has prepared."""
    return int(cluster.get("gpunode", node)["status"]["preparedClaims"])
