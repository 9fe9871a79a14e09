"""Draco allocates on a whole cluster: gangs, pairs, reservations, and pods that must run elsewhere than their claim."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from draco_local.cluster import attach
from draco_local.cluster.process import Processes
from draco_local.cluster.programs import binaries
from draco_local.cluster.state import Record
from tests.e2e.claim_history import ClaimHistory, held_of
from tests.e2e.conftest import EXAMPLES, draco
from tests.e2e.kubectl import Kubectl, eventually
from tests.side_by_side import REPORTS

pytestmark = [
    pytest.mark.since(36),  # the example's version of PodGroups
    pytest.mark.local_provider,
    pytest.mark.simulated_nodes,
]
Example = Callable[..., None]

CLUSTER: Final = f"alloc-{os.getpid()}"
NODES: Final = ("gpu-node-0", "gpu-node-1")
GPUS: Final = 4
"""Per node, in two pairs with an NVLink bridge each."""
ALL: Final = GPUS * len(NODES)
HANDED_OVER_WITHIN_S: Final = 150.0
"""Ten seconds of it are pauses; the rest is for busy machines."""
KILLED_AT: Final = (0, 1, 1, 3)
"""After how many further allocations of a gang the operator is killed; 0 is during its start."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A separate cluster with all GPUs handed over to Draco."""
    size = ["--nodes", str(len(NODES)), "--gpus", str(GPUS), "--board", "A30"]
    try:
        up = draco("cluster", "up", "--name", CLUSTER, "--allocate", "--features", "gangs", *size)
        assert up.returncode == 0, up.stdout + up.stderr
        for node in NODES:
            bridged = draco("cluster", "gpu", "bridge", node, "--name", CLUSTER)
            assert bridged.returncode == 0, bridged.stderr
        kubeconfig = tmp_path_factory.mktemp("cluster") / "kubeconfig"
        kubeconfig.write_text(draco("cluster", "kubeconfig", "--name", CLUSTER).stdout)
        kubeconfig.chmod(0o600)
        kube = Kubectl(binary=binaries.find("kubectl")["kubectl"], kubeconfig=kubeconfig)
        kube.run("apply", "-f", str(EXAMPLES / "hand-over"))
        eventually(lambda: handed_over(kube) == ALL, what="all GPUs are handed over", within_s=HANDED_OVER_WITHIN_S)
        eventually(lambda: linked(kube) == ALL, what="the bridges are published", within_s=HANDED_OVER_WITHIN_S)
        yield kube
    finally:
        down = draco("cluster", "down", "--name", CLUSTER)
    assert down.returncode == 0, down.stdout + down.stderr


@pytest.fixture(scope="module")
def ending() -> list[str]:
    """Namespaces of ended tests on this cluster that may still have pods and claims."""
    return []


@pytest.fixture
def history(kube: Kubectl) -> Iterator[ClaimHistory]:
    """The history of claims during the test. At its end, no two claims may have had one device."""
    history = ClaimHistory(kube)
    with history.followed():
        yield history
    assert history.doubles() == []


def handed_over(kube: Kubectl) -> int:
    return sum(each.get("status", {}).get("gpus", 0) for each in kube.objects("allocationregisters"))


def linked(kube: Kubectl) -> int:
    """How many GPUs have an NVLink."""
    devices = [each for one in kube.objects("resourceslices") for each in one["spec"].get("devices", [])]
    return sum("draco.dev/nvlinkPeers" in each["attributes"] for each in devices)


def pods(kube: Kubectl, job: str) -> list[dict[str, Any]]:
    return kube.objects("pods", labels=f"job-name={job}")


def phases(kube: Kubectl, job: str) -> list[str]:
    return [each["status"].get("phase", "") for each in pods(kube, job)]


def held(kube: Kubectl, prefix: str = "") -> list[tuple[str, str]]:
    """The devices of all claims in the namespace with this name prefix."""
    names = [each["metadata"]["name"] for each in kube.objects("resourceclaims")]
    return [device for name in names if name.startswith(prefix) for device in kube.devices(name)]


def said(kube: Kubectl, reason: str) -> list[str]:
    """Notes of the Events with a reason."""
    return [each.get("note", "") for each in kube.objects("events.events.k8s.io") if each["reason"] == reason]


def a_claim(name: str) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.draco.dev"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def take(kube: Kubectl, name: str) -> tuple[str, str]:
    """Allocate one GPU to a claim that no pod uses."""
    kube.apply_objects(a_claim(name))
    eventually(lambda: kube.devices(name), what=f"claim {name} is allocated")
    return kube.devices(name)[0]


def test_eight_pods_on_two_nodes_start_together_or_not_at_all(
    kube: Kubectl, example: Example, history: ClaimHistory
) -> None:
    all_or_nothing(kube, history, lambda: example("gang-of-eight"))


def test_the_eight_pods_of_a_pod_group_start_together_or_not_at_all(
    kube: Kubectl, example: Example, history: ClaimHistory
) -> None:
    all_or_nothing(kube, history, lambda: example("pod-group-of-eight"))


def all_or_nothing(kube: Kubectl, history: ClaimHistory, begin: Callable[[], None]) -> None:
    """A gang that needs all GPUs has none while one is taken."""
    taken = take(kube, "taken")
    begin()
    eventually(lambda: any("7 of 8" in note for note in said(kube, "GroupWaiting")), what="the Event")
    assert history.most_held("train") == 0
    assert held(kube) == [taken]
    assert phases(kube, "train") == ["Pending"] * ALL
    kube.run("delete", "resourceclaim", "taken")
    eventually(lambda: phases(kube, "train") == ["Running"] * ALL, what="all eight run")
    assert len(set(held(kube, "train"))) == ALL
    assert {each["spec"]["nodeName"] for each in pods(kube, "train")} == set(NODES)


def test_of_two_gangs_that_compete_each_has_all_or_nothing_and_both_run_in_turn(
    kube: Kubectl, example: Example, history: ClaimHistory
) -> None:
    example("two-gangs")
    first = eventually(lambda: whole_gang(kube), what="one gang runs")
    (second,) = {"first", "second"} - {first}
    assert phases(kube, second) == ["Pending"] * 3
    assert history.most_held(first, second) == 0
    kube.run("delete", "job", first)
    eventually(lambda: phases(kube, second) == ["Running"] * 3, what="the other gang runs")
    assert len(set(held(kube, second))) == 6


def whole_gang(kube: Kubectl) -> str:
    """The gang of the example two-gangs whose pods all run; "" if there is none."""
    return next((job for job in ("first", "second") if phases(kube, job) == ["Running"] * 3), "")


def test_two_gpus_of_one_pod_are_linked_by_nvlink(kube: Kubectl, example: Example) -> None:
    node, first = take(kube, "single")
    example("nvlink-pair")
    kube.running("pair")
    partners = {"gpu-0": "gpu-1", "gpu-1": "gpu-0", "gpu-2": "gpu-3", "gpu-3": "gpu-2"}
    pair = [device for pool, device in kube.devices("pair") if pool == node]
    assert len(pair) == 2
    assert partners[pair[0]] == pair[1]
    assert first not in pair


def test_a_gpu_is_beside_the_network_card_that_its_pod_gets(kube: Kubectl, example: Example) -> None:
    example("gpu-beside-nic")
    eventually(lambda: kube.get("pod", "sender")["spec"].get("nodeName"), what="the pod is bound")
    ((card_node, card),), ((gpu_node, gpu),) = held(kube, "sender-card"), held(kube, "sender-gpu")
    assert gpu_node == card_node
    assert root(kube, gpu_node, gpu) == root(kube, card_node, card)
    kube.run(
        "delete", "pod", "sender", "--grace-period=0", "--force"
    )  # a NIC's claim cannot be unprepared, because its driver does not exist


def root(kube: Kubectl, pool: str, name: str) -> str:
    """The PCIe root of a device."""
    slices = [each["spec"] for each in kube.objects("resourceslices") if each["spec"]["pool"]["name"] == pool]
    (found,) = [device for one in slices for device in one.get("devices", []) if device["name"] == name]
    return str(found["attributes"]["resource.kubernetes.io/pcieRoot"]["string"])


def test_a_reservation_is_there_before_its_pods_which_take_it_over_by_name_and_by_label(
    kube: Kubectl, example: Example
) -> None:
    example("reserve-two-gpus", "reservation.yaml")
    reserved = eventually(lambda: len(held(kube, "evening-")) == 2 and held(kube, "evening-"), what="two GPUs")
    assert len({pool for pool, _ in reserved}) == 1
    assert kube.objects("pods") == []
    assert "evening" in draco("reserve", kubeconfig=kube.kubeconfig).stdout
    example("reserve-two-gpus", "pod.yaml")
    kube.running("training")
    assert kube.get("pod", "training")["spec"]["nodeName"] == reserved[0][0]
    assert sorted(held(kube, "evening-")) == sorted(reserved)
    example("reserve-two-gpus", "job.yaml")
    eventually(lambda: phases(kube, "evaluation") == ["Running"], what="the Job's pod runs")
    assert sorted(kube.devices("evening-0") + held(kube, "evaluation-")) == sorted(reserved)


def test_a_pod_that_cannot_follow_its_claim_has_it_moved_to_where_it_can_run(kube: Kubectl, example: Example) -> None:
    claim_on_the_first_node(kube, example)
    example("pod-cannot-follow", "pod.yaml")
    until_moved(kube)


def test_a_claim_moves_from_a_node_that_its_pod_does_not_tolerate(kube: Kubectl, example: Example) -> None:
    claim_on_the_first_node(kube, example)
    kube.run("taint", "node", NODES[0], "example.com/of=others:NoSchedule")
    try:
        kube.apply_objects(a_follower())
        until_moved(kube)
    finally:
        kube.run("taint", "node", NODES[0], "example.com/of-")


def test_a_claim_moves_from_a_node_that_has_too_little_cpu_for_its_pod(kube: Kubectl, example: Example) -> None:
    claim_on_the_first_node(kube, example)
    kube.apply_objects(a_follower("busy", cpu=MOST_CPU, claim="", nodeSelector={"kubernetes.io/hostname": NODES[0]}))
    kube.running("busy")
    kube.apply_objects(a_follower(cpu=MOST_CPU))
    until_moved(kube)


MOST_CPU: Final = "40"
"""More than half of a node's."""


def claim_on_the_first_node(kube: Kubectl, example: Example) -> None:
    """The example's claim, allocated while only this node is available."""
    kube.run("cordon", NODES[1])
    try:
        example("pod-cannot-follow", "claim.yaml")
        (device,) = eventually(lambda: kube.devices("anywhere"), what="the claim is allocated")
    finally:
        kube.run("uncordon", NODES[1])
    assert device[0] == NODES[0]


def until_moved(kube: Kubectl) -> None:
    """Wait until the pod runs on the other node and Events say what happened."""
    kube.running("follower")
    assert [pool for pool, _ in kube.devices("anywhere")] == [NODES[1]]
    (note,) = said(kube, "AllocationTakenBack")
    assert note.startswith(f"Pod follower could not run on {NODES[0]}, where this claim was allocated")


def a_follower(name: str = "follower", *, cpu: str = "1", claim: str = "anywhere", **spec: Any) -> dict[str, Any]:
    """The example's pod, on any node."""
    claims = [{"name": "gpu"}] if claim else []
    container = {"name": "main", "image": "busybox:1.37", "command": ["sleep", "infinity"]}
    spec |= {
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}] if claim else [],
        "containers": [{**container, "resources": {"requests": {"cpu": cpu}, "claims": claims}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_a_gang_is_whole_in_the_end_and_no_gpu_given_twice_though_the_operator_is_killed_again_and_again(
    kube: Kubectl, example: Example, history: ClaimHistory
) -> None:
    """It is killed as soon as this many more of its eight claims are seen allocated; more may be allocated by then."""
    operator, had = Operator(kube), list[int]()
    for more in random.sample(KILLED_AT, len(KILLED_AT)):
        example("gang-of-eight")
        claims = min(len(held(kube, "train")) + more, ALL)
        history.until(
            lambda state, claims=claims: held_of(state, "train") >= claims,
            what=f"{claims} of the gang's claims are allocated",
        )
        operator.kill()
        had.append(len(held(kube, "train")))
        if had[-1] == ALL:  # the rest is for another operator
            kube.run("delete", "job", "train")
            eventually(lambda: not held(kube, "train"), what="the gang's end")
    REPORTS.append(f"kills: an operator was killed when of a gang's {ALL} claims these were allocated: {had}")
    example("gang-of-eight")
    eventually(lambda: phases(kube, "train") == ["Running"] * ALL, what="all eight run")
    assert len(set(held(kube, "train"))) == ALL


class Operator:
    """The cluster's operator, by its process."""

    def __init__(self, kube: Kubectl) -> None:
        self._kube = kube
        self._processes = Processes(Record(CLUSTER).folder)
        (self._record,) = [each for each in self._processes.records() if each.name == attach.OPERATOR_PROCESS]

    def kill(self) -> None:
        """Kill the operator and start another. The dead one's lease is deleted, so nothing waits for its expiry."""
        os.kill(self._record.pid, signal.SIGKILL)
        self._processes.stop(attach.OPERATOR_PROCESS, grace_s=0.0)
        self._kube.run(
            "delete", "lease", "--namespace", attach.SYSTEM_NAMESPACE, "draco-operator", "--ignore-not-found"
        )
        self._record = self._processes.start(attach.OPERATOR_PROCESS, self._record.argv)
