"""What helm has installed on the cluster of these tests."""

from typing import Any

from tests.e2e.kubectl import Kubectl

SYSTEM = "draco-system"
NODES, GPUS = 2, 2


def system_pods(cluster: Kubectl, component: str) -> list[dict[str, Any]]:
    """The pods of the operator or of the agent."""
    return cluster.objects("pods", namespace=SYSTEM, labels=f"app.kubernetes.io/component={component}")
