"""An agent dies on a whole cluster: no new claim gets its GPUs, running pods continue, and its return lifts the fence."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from draco_local.cluster import attach
from tests.e2e.kubectl import Kubectl, eventually

pytestmark = pytest.mark.simulated_nodes

Json = dict[str, Any]
NODE: Final = "fenced-node"
LEASE_S: Final = 6
LATE_S: Final = 10.0
"""How long after the lease's expiry a fence may come on a machine busy with tests; the benchmark measures it alone."""
PROJECT: Final = Path(__file__).parents[2]


class LoneNode:
    """An additional node whose agent is a separate process with a short lease. Use it as a context manager."""

    def __init__(self, kube: Kubectl, root: Path) -> None:
        self._kube, self._root = kube, root
        self._agent = ExitStack()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Create the node and its agent within the block; afterwards nothing of it is left."""
        with self._runs("tests.adversary.cluster.kubelets", "--root", self._root, "--name", NODE, "--gpus", 2):
            try:
                eventually((self._folder / "gpus.json").exists, what="the node has GPUs")
                self.start_agent()
                yield
            finally:
                self.kill_agent()
                self.say_logs()
        self._kube.run("delete", "node", NODE)
        self._kube.run("delete", "gpunode", NODE, "--ignore-not-found")
        self._kube.run("delete", "resourceslices", f"--field-selector=spec.nodeName={NODE}")

    def start_agent(self) -> None:
        """Start its agent."""
        state = self._folder / "gpus.json"
        arguments = ["--node-name", NODE, "--state", state, "--kubelet-dir", self._folder]
        arguments += ["--cdi-dir", self._folder / "cdi", "--namespace", attach.SYSTEM_NAMESPACE]
        arguments += ["--agent-lease-duration", LEASE_S]
        self._agent.enter_context(self._runs("draco_local.simulator.agent", *arguments))

    def kill_agent(self) -> None:
        """Kill its agent."""
        self._agent.close()

    def say_logs(self) -> None:
        """Print the last log lines of agent and stand-in: pytest shows them if the test fails."""
        for log in sorted(self._root.glob("*.log")):
            last = log.read_text(errors="replace").splitlines()[-40:]
            sys.stdout.write("\n".join([log.name, *last, ""]))

    @property
    def _folder(self) -> Path:
        return self._root / NODE

    @contextmanager
    def _runs(self, module: str, *arguments: object) -> Iterator[None]:
        argv = [sys.executable, "-m", module, "--kubeconfig", self._kube.kubeconfig, *arguments]
        with (self._root / f"{module}.log").open("ab") as log:
            process = subprocess.Popen([str(each) for each in argv], cwd=PROJECT, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def node(kube: Kubectl) -> Iterator[LoneNode]:
    with tempfile.TemporaryDirectory(prefix="fence-") as root:  # sockets need a short path
        made = LoneNode(kube, Path(root))
        with made.joined():
            eventually(lambda: lease(kube), what="its agent renews a lease")
            yield made
            kube.run("delete", "pods,resourceclaims", "--all", "--timeout=60s")


def lease(kube: Kubectl) -> bool:
    leases = kube.objects("leases", namespace=attach.SYSTEM_NAMESPACE)
    return any(each["metadata"]["name"] == f"draco-agent-{NODE}" for each in leases)


def fences(kube: Kubectl) -> list[str]:
    """The pools that are fenced."""
    rules = [each["spec"] for each in kube.objects("devicetaintrules")]
    return [
        each["deviceSelector"]["pool"]
        for each in rules
        if (each["taint"]["key"], each["taint"]["effect"]) == ("draco.dev/agent-lost", "NoSchedule")
    ]


def a_pod_with_a_gpu(name: str) -> tuple[Json, Json]:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    }
    container = {"name": "main", "image": "busybox:1.37", "command": ["sleep", "infinity"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [{**container, "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }
    return claim, pod


def refused(kube: Kubectl, pod: str) -> bool:
    """Whether the scheduler has looked at the pod and found nothing for it."""
    conditions = kube.get("pod", pod)["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("PodScheduled", "False") for each in conditions)


def test_a_dead_agent_gets_no_new_claim_its_pods_keep_running_and_its_return_lets_the_next_one_run(
    kube: Kubectl, node: LoneNode
) -> None:
    kube.apply_objects(*a_pod_with_a_gpu("runs"))
    kube.running("runs")
    assert fences(kube) == []

    node.kill_agent()
    died = time.monotonic()
    eventually(lambda: fences(kube) == [NODE], within_s=LEASE_S + LATE_S, what="its GPUs are fenced, and no others")
    assert time.monotonic() - died > LEASE_S / 2, "three of four renewals may fail"
    kube.apply_objects(*a_pod_with_a_gpu("waits"))
    eventually(lambda: refused(kube, "waits"), what="the scheduler has nothing for a new pod")
    assert kube.devices("waits") == []
    assert kube.phase("runs") == "Running"

    node.start_agent()
    kube.running("waits")
    assert fences(kube) == []
    assert {pool for name in ("runs", "waits") for pool, _ in kube.devices(name)} == {NODE}
    assert kube.phase("runs") == "Running"
