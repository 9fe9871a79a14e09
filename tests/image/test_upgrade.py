"""Upgrade and rollback on real nodes with a claim held throughout, while other pods start and end: nobody notices."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draco_local.cluster import chart
from draco_local.cluster.programs import binaries
from draco_local.cluster.providers.interface import Cluster
from draco_local.cluster.providers.local import LocalCluster
from draco_local.cluster.realnode.config import CONTAINERD_SOCKET
from draco_local.cluster.realnode.nodes import RealNodes
from tests.component.chart.rendering import CHART, helm
from tests.e2e import provider
from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.real_nodes.pods import claim, pod
from tests.image import installed
from tests.image.installed import SYSTEM, prepared, system_pods
from tests.side_by_side import REPORTS

NODES = ("real-1", "real-2")
NEXT = "next"


@pytest.fixture
def next_image(opened: Cluster) -> str:
    """Another name for the image, so that helm and kubelet take it for another version."""
    assert isinstance(opened, LocalCluster)
    image = chart.image_of(provider.ARCHIVE)
    repository = image.rpartition(":")[0]
    for node in opened.real_nodes.nodes:
        tagged(opened.real_nodes, node, image, f"{repository}:{NEXT}")
    return NEXT


def tagged(nodes: RealNodes, node: str, image: str, name: str) -> None:
    ctr: list[str | Path] = [binaries.find("ctr")["ctr"], "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io"]
    done = nodes.exec_on_node(node, [*ctr, "images", "tag", "--force", image, name])
    assert done.returncode == 0, done.stderr


class Traffic(threading.Thread):
    """Pods with claims that start and end on one node one after another, until told to stop."""

    def __init__(self, kube: Kubectl, node: str) -> None:
        super().__init__(name=f"pods on {node}", daemon=True)
        self.longest_s = 0.0
        self.count = 0
        self.trouble: BaseException | None = None
        self._kube, self._node = kube, node
        self._enough = threading.Event()

    def run(self) -> None:
        try:
            while not self._enough.is_set():
                self._one(f"{self._node}-{self.count}")
                self.count += 1
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.trouble = error

    def end(self) -> None:
        self._enough.set()
        self.join(timeout=180)

    def _one(self, name: str) -> None:
        began = time.monotonic()
        self._kube.apply_objects(claim(name), pod(name, node=self._node, claims=name))
        self._kube.running(name, within_s=150)
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self._kube.run("delete", "pod", name, "--grace-period=1")
        self._kube.run("delete", "resourceclaim", name)


def tags(cluster: Kubectl) -> set[str]:
    """The running versions."""
    return {
        each["spec"]["containers"][0]["image"].rpartition(":")[2]
        for component in ("operator", "agent")
        for each in system_pods(cluster, component)
    }


def failures(kube: Kubectl) -> list[str]:
    """Kubelet's messages about claims that could not be prepared."""
    events = kube.objects("events")
    return [each["message"] for each in events if "FailedPrepare" in each["reason"]]


@pytest.fixture
def upgraded(cluster: Kubectl) -> Iterator[Callable[..., float]]:
    """Run helm; returns how long it took."""

    def call(verb: str, *arguments: str) -> float:
        began = time.monotonic()
        done = installed.helm(cluster, verb, *arguments)
        assert done.returncode == 0, done.stderr
        return time.monotonic() - began

    yield call
    [current] = json.loads(helm("list", "--kubeconfig", cluster.kubeconfig, "--namespace", SYSTEM, "-o", "json").stdout)
    assert current["status"] == "deployed"


def test_nobody_notices_an_upgrade_and_a_rollback(
    cluster: Kubectl, kube: Kubectl, next_image: str, upgraded: Callable[..., float]
) -> None:
    kube.apply_objects(claim("held"), pod("holder", node="real-1", claims="held"))
    kube.running("holder")
    before = tags(cluster)
    holder, held = kube.get("pod", "holder"), kube.get("resourceclaim", "held")
    traffic = [Traffic(kube, node) for node in NODES]
    for each in traffic:
        each.start()
    took: dict[str, float] = {}
    try:
        eventually(lambda: all(each.count for each in traffic), what="pods come and go")
        reuse = ("--reuse-values", "--set", f"image.tag={next_image}")
        took["upgrade"] = upgraded("upgrade", str(CHART), *reuse)
        eventually(lambda: tags(cluster) == {NEXT}, what="the next version runs", within_s=120)
        seen = [each.count for each in traffic]
        eventually(lambda: all(each.count > n for each, n in zip(traffic, seen, strict=True)), what="pods after it")
        took["rollback"] = upgraded("rollback")
        eventually(lambda: tags(cluster) == before, what="the version before runs", within_s=120)
        seen = [each.count for each in traffic]
        eventually(lambda: all(each.count > n for each, n in zip(traffic, seen, strict=True)), what="pods after that")
    finally:
        for each in traffic:
            each.end()
    assert [each.trouble for each in traffic] == [None, None]
    assert failures(kube) == []
    after = kube.get("pod", "holder")
    assert after["metadata"]["uid"] == holder["metadata"]["uid"]
    assert [each["restartCount"] for each in after["status"]["containerStatuses"]] == [0]
    assert kube.get("resourceclaim", "held")["status"]["allocation"] == held["status"]["allocation"]
    eventually(lambda: prepared(cluster, "real-1") == 1, what="the claim that is held is the only one prepared")
    kube.run("delete", "pod", "holder", "--grace-period=1")
    eventually(lambda: prepared(cluster, "real-1") == 0, what="the claim is given up when its pod ends")
    pods, slowest_s = sum(each.count for each in traffic), max(each.longest_s for each in traffic)
    REPORTS.append(
        f"upgrade {took['upgrade']:.1f} s, rollback {took['rollback']:.1f} s; meanwhile {pods} pods started and ended, "
        f"the slowest in {slowest_s:.1f} s"
    )
