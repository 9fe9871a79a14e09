"""MPS as helm installs it: the keeper in a DaemonSet of its own, with the driver of the node, and clients in containers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.component.chart.rendering import CHART
from tests.e2e.conftest import EXAMPLES
from tests.e2e.kubectl import Kubectl, eventually
from tests.image import installed
from tests.image.installed import NODES, system_pods

pytestmark = pytest.mark.real_node


@pytest.fixture
def with_mps(cluster: Kubectl, kube: Kubectl) -> Iterator[Kubectl]:
    """Kubectl, with mps.enabled. Afterwards it is off again."""
    done = installed.helm(cluster, "upgrade", str(CHART), "--reuse-values", "--set", "mps.enabled=true")
    assert done.returncode == 0, done.stderr
    yield kube
    kube.run("delete", "pods,resourceclaims", "--all", "--grace-period=1", "--wait=true")
    done = installed.helm(cluster, "rollback")
    assert done.returncode == 0, done.stderr


def answer(kube: Kubectl, pod: str) -> str:
    """What the daemon answers to a client in a container."""
    asked = "echo get_default_active_thread_percentage | nvidia-cuda-mps-control || true"
    return kube.run("exec", pod, "--", "sh", "-c", asked).stdout.strip()


def test_a_keeper_on_each_node_serves_clients_also_after_it_was_replaced(with_mps: Kubectl) -> None:
    kube = with_mps
    keepers = system_pods(kube, "mps")
    assert len(keepers) == NODES
    documents = [each for file in Path(EXAMPLES / "mps").iterdir() for each in yaml.safe_load_all(file.read_text())]
    kube.apply_objects(*documents)
    kube.running("first", "second")
    for name in ("first", "second"):
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in kube.run("exec", name, "--", "env").stdout.splitlines()
        assert answer(kube, name) == "50.0"

    kube.run("delete", "pods", "--namespace", installed.SYSTEM, "-l", "app.kubernetes.io/component=mps", "--wait=true")
    eventually(lambda: ready(kube) == NODES, what="other keepers run")
    # On cgroups of version 1 the daemon ends with the keeper's container, and is started again.
    eventually(lambda: answer(kube, "first") == "50.0", what="the same container is served")


def ready(kube: Kubectl) -> int:
    """How many keepers run and are not about to end."""
    return sum(
        each["status"].get("phase") == "Running" and "deletionTimestamp" not in each["metadata"]
        for each in system_pods(kube, "mps")
    )
