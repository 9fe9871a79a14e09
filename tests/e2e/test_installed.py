"""Draco installed by helm from the image, on nodes that run containers: Draco's own pods, and devices in users' pods."""

import base64

import pytest

from tests.e2e.kubectl import Kubectl, eventually
from tests.e2e.provider import GPUS, NODES
from tests.e2e.real_nodes.pods import claim, pod
from tests.image.installed import SYSTEM, system_pods

pytestmark = pytest.mark.from_image

ENDED_BY_TESTS = {137, 255}
"""Exit codes of a killed container and of one whose node went down."""


def test_operator_and_agents_run_as_pods_with_no_more_rights_than_they_need(cluster: Kubectl) -> None:
    # Earlier tests have killed their processes more than once: kubelet then restarts them with backoff.
    eventually(lambda: are_ready(cluster), within_s=300.0, what="the pods are ready")
    operators, agents = system_pods(cluster, "operator"), system_pods(cluster, "agent")
    assert {each["spec"]["nodeName"] for each in agents} == set(NODES)
    assert len(operators) == 2
    for each in (*operators, *agents):
        [container] = each["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        [container] = each["status"]["containerStatuses"]
        ended = container["lastState"].get("terminated", {})
        crashed = bool(ended) and (ended["exitCode"] not in ENDED_BY_TESTS or ended.get("reason") == "OOMKilled")
        assert not crashed, cluster.run("logs", "-p", "-n", SYSTEM, each["metadata"]["name"]).stdout
    for each in operators:
        assert each["spec"]["securityContext"]["runAsNonRoot"]
        [container] = each["spec"]["containers"]
        assert not container["securityContext"].get("privileged")


def are_ready(cluster: Kubectl) -> bool:
    """Whether each node has an agent and all containers of Draco's pods are ready."""
    operators, agents = system_pods(cluster, "operator"), system_pods(cluster, "agent")
    statuses = [status for each in (*operators, *agents) for status in each["status"].get("containerStatuses", [])]
    return len(agents) == len(NODES) and len(statuses) == 2 + len(NODES) and all(each["ready"] for each in statuses)


@pytest.mark.any_gpu
def test_a_pod_gets_a_gpu_and_gives_it_back(kube: Kubectl) -> None:
    kube.apply_objects(claim("one"), pod("worker", node=NODES[0], claims="one"))
    kube.running("worker")
    [(pool, device)] = kube.devices("one")
    assert pool == NODES[0]
    inside = kube.run("exec", "worker", "--", "sh", "-c", "ls /dev/nvidia[0-9]* && env").stdout
    assert f"/dev/nvidia{device.removeprefix('gpu-')}\n" in inside
    assert f"DRACO_DEVICE_{device.upper().replace('-', '_')}=GPU-" in inside
    kube.run("delete", "pod", "worker", "--grace-period=1")

    def free() -> bool:
        return not kube.get("resourceclaim", "one").get("status", {}).get("reservedFor")

    eventually(free, what="the claim is free")


SCRAPE = """
import socket, ssl, sys
address, host, authority, token = sys.argv[1:]
tls = ssl.create_default_context(cadata=authority)
with tls.wrap_socket(socket.create_connection((address, 8443), 30), server_hostname=host) as to:
    to.sendall(f"GET /metrics HTTP/1.0\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n".encode())
    print(b"".join(iter(lambda: to.recv(65536), b"")).decode())
"""


@pytest.mark.any_gpu
def test_metrics_are_scraped_with_the_token_of_who_may_read_them(kube: Kubectl, cluster: Kubectl) -> None:
    kube.run("create", "serviceaccount", "prometheus")
    namespace = kube.run("get", "serviceaccount", "prometheus", "-o", "jsonpath={.metadata.namespace}").stdout
    token = kube.run("create", "token", "prometheus").stdout.strip()
    [scraper, *_] = system_pods(cluster, "agent")

    def scraped(component: str) -> str:
        name = f"draco-{component}-metrics"
        given = cluster.run("get", "secret", name, "-n", SYSTEM, "-o", r"jsonpath={.data.ca\.crt}").stdout
        [pod, *_] = system_pods(cluster, component)
        asked = (pod["status"]["podIP"], f"{name}.{SYSTEM}.svc", base64.b64decode(given).decode(), token)
        inside = ("exec", "-n", SYSTEM, scraper["metadata"]["name"], "--", "python3", "-c", SCRAPE)
        return cluster.run(*inside, *asked).stdout

    assert "403 Forbidden" in scraped("operator")
    assert "403 Forbidden" in scraped("agent")
    account = f"--serviceaccount={namespace}:prometheus"
    cluster.run("create", "clusterrolebinding", "reads-metrics", "--clusterrole=draco-metrics-reader", account)
    try:
        eventually(lambda: "draco_leader" in scraped("operator"), what="the operator's metrics")
        eventually(lambda: "draco_agent_gpus" in scraped("agent"), what="the agent's metrics")
    finally:
        cluster.run("delete", "clusterrolebinding", "reads-metrics")


@pytest.mark.local_provider  # on kind's nodes that library does not work: the agent has NVML in its own process
def test_the_agent_has_loaded_the_nodes_nvml_and_nothing_else_of_the_node(cluster: Kubectl) -> None:
    [agent] = [each for each in system_pods(cluster, "agent") if each["spec"]["nodeName"] == NODES[0]]
    read = "print(*{line.split()[-1] for line in open('/proc/1/maps') if '.so' in line}, sep='\\n')"
    mapped = cluster.run("exec", "-n", SYSTEM, agent["metadata"]["name"], "--", "python3", "-c", read).stdout.split()
    of_the_node = [path for path in mapped if path.startswith("/driver-root")]
    assert of_the_node == ["/driver-root/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05"]
    assert [path for path in mapped if path.endswith("/libc.so.6")] == ["/usr/lib/x86_64-linux-gnu/libc.so.6"]


@pytest.mark.any_gpu
def test_any_image_finds_the_nodes_driver_in_its_linker_cache(kube: Kubectl, cluster: Kubectl) -> None:
    """This image has no library path, and other libraries than the node."""
    [told] = [
        each for each in cluster.get("gpunode", NODES[0])["status"]["conditions"] if each["type"] == "ToolkitUsed"
    ]
    assert (told["status"], told.get("message", "")) == ("True", "")
    [agent] = [each for each in system_pods(cluster, "agent") if each["spec"]["nodeName"] == NODES[0]]
    wanted = pod("worker", node=NODES[0], claims="one")
    wanted["spec"]["containers"][0] |= {
        "image": agent["spec"]["containers"][0]["image"],
        "command": ["python3", "-c", "import time; time.sleep(600)"],
    }
    kube.apply_objects(claim("one"), wanted)
    kube.running("worker")
    program = "import ctypes, os; print(ctypes.CDLL('libcuda.so.1').cuInit(0), os.environ.get('LD_LIBRARY_PATH'))"
    assert kube.run("exec", "worker", "--", "python3", "-c", program).stdout.split() == ["100", "None"]
    cached = kube.run("exec", "worker", "--", "ldconfig", "-p").stdout
    assert "libcuda.so.1 (" in cached
    assert "simulated" in kube.run("exec", "worker", "--", "nvidia-smi").stdout
    assert (
        kube.run("exec", "worker", "--", "readlink", "/usr/lib/x86_64-linux-gnu/libcuda.so").stdout == "libcuda.so.1\n"
    )
    kube.run("delete", "pod", "worker", "--grace-period=0", "--force")


def test_a_waiting_claim_is_explained(kube: Kubectl) -> None:
    wanted = claim("too-big")
    wanted["spec"]["devices"]["requests"][0]["exactly"]["count"] = GPUS + 1
    kube.apply_objects(wanted, pod("waits", node=NODES[0], claims="too-big"))
    [note, *_] = eventually(lambda: kube.notes("too-big"), what="an Event about the claim")
    assert f"wants {GPUS + 1} devices on one node" in note


def test_one_gpu_is_maintained_while_its_neighbour_works(kube: Kubectl, cluster: Kubectl) -> None:
    maintenance = {
        "apiVersion": "draco.dev/v1alpha1",
        "kind": "DeviceMaintenance",
        "metadata": {"name": "swap-gpu-0"},
        "spec": {"deviceSelector": {"driver": "gpu.nvidia.com", "pool": NODES[1], "device": "gpu-0"}},
    }
    cluster.apply_objects(maintenance)
    try:
        eventually(
            lambda: cluster.get("devicemaintenance", "swap-gpu-0").get("status", {}).get("phase") == "InMaintenance",
            what="the GPU is isolated",
        )
        kube.apply_objects(claim("other"), pod("worker", node=NODES[1], claims="other"))
        kube.running("worker")
        assert kube.devices("other") == [(NODES[1], "gpu-1")]
    finally:
        cluster.run("delete", "devicemaintenance", "swap-gpu-0")


def test_an_agent_that_is_replaced_keeps_the_claims_of_its_node(kube: Kubectl, cluster: Kubectl) -> None:
    kube.apply_objects(claim("kept"), pod("worker", node=NODES[0], claims="kept"))
    kube.running("worker")
    [old] = [each for each in system_pods(cluster, "agent") if each["spec"]["nodeName"] == NODES[0]]
    cluster.run("delete", "pod", "-n", SYSTEM, old["metadata"]["name"])

    def replaced() -> bool:
        found = [each for each in system_pods(cluster, "agent") if each["spec"]["nodeName"] == NODES[0]]
        return [each["status"].get("phase") for each in found] == ["Running"] and found[0]["metadata"] != old[
            "metadata"
        ]

    eventually(replaced, what="another agent runs")
    assert kube.phase("worker") == "Running"
    kube.run("delete", "pod", "worker", "--grace-period=1")
    eventually(lambda: not kube.objects("pods"), what="the pod is gone: its claim was unprepared by the new agent")
