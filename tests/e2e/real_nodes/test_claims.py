"""A claim on a real kubelet and container runtime, and the restarts that it survives."""

import json
from pathlib import Path

import pytest
import yaml

from draco.agent.mig.holders import Holders
from draco_local.cluster import gpus
from draco_local.cluster.realnode.agent import gpu_state_file, install_driver
from draco_local.cluster.realnode.config import LABEL_REAL
from draco_local.cluster.realnode.nodes import disk_of
from tests.e2e.kubectl import eventually
from tests.e2e.real_nodes.pods import RETURNS_WITHIN_S, STARTS_WITHIN_S, WHOLE_GPUS, Bench, claim, pod

EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"

pytestmark = pytest.mark.real_node


def test_a_container_sees_its_gpu_and_no_other(bench: Bench) -> None:
    bench.start("one", "two")
    for name in ("one", "two"):
        device = bench.device(name)
        variable = "DRACO_DEVICE_" + device.upper().replace("-", "_")
        environment = bench.environment(name)
        assert environment[variable].startswith("GPU-")
        assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert bench.gpu_nodes(name) == {device.replace("gpu-", "nvidia")}
        assert (
            bench.inside(name, "sh", "-c", f"echo written > /dev/{device.replace('gpu-', 'nvidia')} && echo done")
            == "done\n"
        )
    assert bench.device("one") != bench.device("two")
    assert bench.gpu_uuids("one") != bench.gpu_uuids("two")


def test_a_container_has_the_nodes_driver_where_any_image_looks_for_it(bench: Bench) -> None:
    bench.start("one")
    libraries = bench.inside("one", "ls", "/usr/lib/x86_64-linux-gnu").split()
    assert {"libcuda.so", "libcuda.so.1", "libcuda.so.580.95.05", "libnvidia-ml.so.1"} <= set(libraries)
    assert "simulated" in bench.inside("one", "nvidia-smi")
    assert "gsp_ga10x.bin" in bench.inside("one", "ls", "/lib/firmware/nvidia/580.95.05")
    [told] = [
        each for each in bench.kube.get("gpunode", bench.node)["status"]["conditions"] if each["type"] == "ToolkitUsed"
    ]
    # The image has NVIDIA's toolkit, but here the agent may run without the image.
    wanted = ("True", "EditsTaken") if bench.agent_is_a_pod() else ("False", "OwnEdits")
    assert (told["status"], told["reason"]) == wanted, told.get("message")


def test_an_upgrade_of_the_driver_reaches_agent_and_containers(bench: Bench) -> None:
    bench.start("one")
    old = bench.container("one")
    path = gpu_state_file(disk_of(bench.nodes.folder, bench.node))

    def told() -> str:
        return str(bench.kube.get("gpunode", bench.node)["status"].get("driverVersion", ""))

    try:
        gpus.reload_driver(path, version="595.58.03")
        eventually(lambda: told() == "595.58.03", within_s=60, what="the agent has loaded the new NVML")
        eventually(
            lambda: "libcuda.so.595.58.03" in bench.on_node("cat", *bench.spec_files()),
            within_s=60,
            what="the claim's spec names the new libraries: the old ones are gone",
        )
        assert bench.container("one") == old  # a running container is not affected
        bench.inside("one", "sh", "-c", "kill -TERM 1")
        eventually(lambda: bench.returned("one", old), within_s=RETURNS_WITHIN_S, what="the container is started again")
        assert "libcuda.so.595.58.03" in bench.inside("one", "ls", "/usr/lib/x86_64-linux-gnu").split()
    finally:
        gpus.reload_driver(path, version="580.95.05")
        eventually(lambda: told() == "580.95.05", within_s=60, what="the agent has loaded the old NVML")


def test_a_driver_that_is_installed_and_not_loaded_yet_is_given_to_no_container(bench: Bench) -> None:
    bench.start("one")
    old, disk = bench.container("one"), disk_of(bench.nodes.folder, bench.node)

    def readable() -> str:
        conditions = bench.kube.get("gpunode", bench.node)["status"]["conditions"]
        return next(str(each["reason"]) for each in conditions if each["type"] == "Readable")

    try:
        install_driver(disk, "595.58.03")
        eventually(lambda: readable() == "DriverMismatch", within_s=60, what="the agent tells of the mismatch")
        bold = claim("two")
        bold["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [{"operator": "Exists"}]
        bench.apply([bold, pod("two", node=bench.node, claims="two")])
        eventually(
            lambda: any("Reload the driver or reboot the node" in each for each in bench.kube.notes("two", "Pod")),
            within_s=STARTS_WITHIN_S,
            what="an event of the pod says why it waits",
        )
        assert not bench.ready("two")
        assert bench.container("one") == old
        gpus.reload_driver(gpu_state_file(disk), version="595.58.03")
        bench.wait("two")
        assert "libcuda.so.595.58.03" in bench.inside("two", "ls", "/usr/lib/x86_64-linux-gnu").split()
    finally:
        gpus.reload_driver(gpu_state_file(disk), version="580.95.05")
        eventually(lambda: readable() == "DriverAnswers", within_s=60, what="the agent goes on by itself")


def test_an_example_runs_as_it_is_written_without_a_registry(bench: Bench) -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / "one-gpu-by-memory" / "claim.yaml").read_text()))
    (example,) = [each for each in documents if each["kind"] == "Pod"]
    example["spec"]["nodeSelector"] = {LABEL_REAL: "true"}
    bench.apply(documents)
    bench.wait(example["metadata"]["name"])


def test_the_claim_says_that_its_device_is_ready(bench: Bench) -> None:
    bench.start("one")

    def conditions() -> dict[str, str]:
        (device,) = bench.kube.get("resourceclaim", "one")["status"].get("devices", [{}]) or [{}]
        return {each["type"]: each["status"] for each in device.get("conditions", [])}

    eventually(lambda: conditions().get("Ready") == "True", within_s=STARTS_WITHIN_S, what="the device is Ready")


def test_a_process_is_found_in_its_pod_and_container_by_cgroup_and_mounts(bench: Bench) -> None:
    bench.start("one")
    uid = bench.kube.get("pod", "one")["metadata"]["uid"]
    holders = Holders(Path("/proc"))
    container = bench.container("one").rpartition("/")[2]
    pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    inside = [pid for pid in pids if holders.place(pid) == (uid, container)]
    assert inside
    assert {holders.container_name(pid, uid) for pid in inside} == {"main"}
    assert holders.claims_told(inside[0]) == {bench.kube.get("resourceclaim", "one")["metadata"]["uid"]}


def test_a_deleted_pod_gives_its_gpu_back(bench: Bench) -> None:
    bench.start("one")
    assert bench.prepared("one")
    bench.delete("one")
    eventually(lambda: bench.released("one"), within_s=STARTS_WITHIN_S, what="the claim is released")


def test_a_container_and_its_claim_outlive_kubelet(bench: Bench) -> None:
    bench.start("one")
    container, device = bench.container("one"), bench.device("one")
    before = bench.kill("kubelet")
    bench.restarted("kubelet", before=before)
    bench.start("two")  # the new kubelet has the driver registered and prepares with it
    assert bench.container("one") == container
    assert bench.device("one") == device
    assert bench.device("two") != device
    bench.delete("one")
    eventually(lambda: bench.released("one"), within_s=STARTS_WITHIN_S, what="the claim is released")


def test_a_container_and_its_claim_outlive_the_agent(bench: Bench) -> None:
    bench.start("one")
    container, device = bench.container("one"), bench.device("one")
    before = bench.kill("agent")
    bench.restarted("agent", before=before)
    bench.start("two")
    assert bench.container("one") == container
    assert bench.prepared("one")
    assert bench.device("two") != device
    assert bench.published() == WHOLE_GPUS


def test_a_pod_deleted_while_the_agent_is_dead_is_released_when_it_is_back(bench: Bench) -> None:
    bench.start("one")
    before = bench.kill("agent")
    bench.delete("one")
    bench.restarted("agent", before=before)
    eventually(lambda: bench.released("one"), within_s=STARTS_WITHIN_S, what="the claim is released")


def test_the_agent_of_one_node_cannot_write_what_belongs_to_another(bench: Bench) -> None:
    token = bench.agent_token()
    (mine, theirs) = (bench.slice_of(node) for node in bench.nodes.nodes)
    for name, refusal in ((mine, ""), (theirs, "may write only slices for that node alone")):
        touched = bench.kube.get("resourceslice", name)
        touched["metadata"]["annotations"] = {"tests/touched": "yes"}
        done = bench.as_holder_of(token, "replace", "--dry-run=server", "-f", "-", given=json.dumps(touched))
        assert refusal in done.stderr
        assert (done.returncode == 0) is (refusal == "")
