import json
import tomllib
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from draco.agent.hardware.capabilities import Capabilities
from draco_local.cluster.realnode.config import (
    RealNodeFacts,
    containerd_config,
    gpu_devices,
    kubelet_config,
    plan_json,
    plan_node,
    pod_network,
    proxy_config,
)
from draco_local.cluster.realnode.init import NodePlan, Service
from draco_local.simulator.gpus import procfs
from draco_local.simulator.gpus.state import create

FACTS = RealNodeFacts(
    name="real-1",
    address=IPv4Address("10.99.1.11"),
    pods=IPv4Network("10.101.1.0/24"),
    all_pods=IPv4Network("10.101.0.0/16"),
    disk=Path("/state/disks/real-1"),
    images=Path("/state/images"),
    programs={name: Path("/bin-dir", name) for name in ("kubelet", "kube-proxy", "containerd", "ctr")},
    cni_bin=Path("/usr/lib/cni"),
    kubelet_kubeconfig=Path("/state/kubelet.kubeconfig"),
    proxy_kubeconfig=Path("/state/kube-proxy.kubeconfig"),
    authority=Path("/state/ca.crt"),
    cgroup="/draco-0a1b2c-gpu/real-1",
    feature_gates={"DRAExtendedResource": True},
    labels={"zone": "a"},
    gpus=2,
    driver=Service(name="driver", argv=["driver"]),
    agent=Service(name="agent", argv=["agent"], after="/run/token"),
    mps=None,
    may_lower_oom_score=False,
)


def containerd_runtime(facts: RealNodeFacts = FACTS) -> dict[str, Any]:
    runtime: dict[str, Any] = tomllib.loads(containerd_config(facts))["plugins"]["io.containerd.cri.v1.runtime"]
    return runtime


def test_containerd_injects_cdi_devices_from_where_the_agent_writes_them() -> None:
    assert containerd_runtime()["enable_cdi"] is True
    assert "/var/run/cdi" in containerd_runtime()["cdi_spec_dirs"]


def test_containerd_leaves_oom_scores_alone_only_where_the_machine_may_not_lower_them() -> None:
    assert containerd_runtime()["restrict_oom_score_adj"] is True
    assert containerd_runtime(replace(FACTS, may_lower_oom_score=True))["restrict_oom_score_adj"] is False


def test_kubelet_keeps_its_pods_below_the_nodes_own_cgroup_on_both_versions() -> None:
    config = kubelet_config(FACTS)
    assert config["cgroupRoot"] == "/draco-0a1b2c-gpu/real-1"
    assert config["cgroupDriver"] == "cgroupfs"
    assert config["failCgroupV1"] is False


def test_nobody_talks_to_kubelet_without_being_known_to_the_api_server() -> None:
    config = kubelet_config(FACTS)
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authorization"] == {"mode": "Webhook"}
    assert config["readOnlyPort"] == 0


def test_pods_get_addresses_of_their_own_node_only() -> None:
    (first, _) = pod_network(FACTS)["plugins"]
    assert first["ipam"]["ranges"] == [[{"subnet": "10.101.1.0/24"}]]


def test_kube_proxy_knows_which_addresses_are_pods_and_does_not_tune_the_machine() -> None:
    config = proxy_config(FACTS)
    assert config["clusterCIDR"] == "10.101.0.0/16"
    assert config["conntrack"] == {"maxPerCore": 0}


def test_a_node_has_a_device_node_for_each_gpu_and_the_shared_ones() -> None:
    devices = gpu_devices(2)
    assert devices[:6] == ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
    assert [devices[6], devices[-1]] == ["nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap272"]


def test_every_instance_that_a_gpu_could_have_has_its_device_nodes(tmp_path: Path) -> None:
    state = create(tmp_path / "gpus.json", gpus=2, node_name="n")
    capabilities = Capabilities(procfs.build(tmp_path / "gpus.json", state))
    for minor in (0, 1):
        for gi in range(15):
            assert {path.removeprefix("/dev/") for path in capabilities.paths(minor, gi, 0)} <= set(gpu_devices(2))


def test_the_runtime_comes_first_and_the_agent_waits_for_its_token() -> None:
    plan = plan_node(FACTS)
    assert plan.runtime.name == "containerd"
    assert [service.name for service in plan.services] == ["driver", "kubelet", "kube-proxy", "agent"]
    assert plan.services[3].after == "/run/token"


def test_the_first_process_reads_back_exactly_the_plan_that_was_written() -> None:
    plan = plan_node(FACTS)
    assert NodePlan.from_json(plan_json(plan)) == NodePlan.from_json(json.dumps(json.loads(plan_json(plan))))
    assert NodePlan.from_json(plan_json(plan)).services == list(plan.services)


def test_real_nodes_can_be_told_from_simulated_ones_by_a_label() -> None:
    (_, kubelet, *_) = plan_node(FACTS).services
    assert kubelet.argv[list(kubelet.argv).index("--node-labels") + 1] == "draco.dev/real=true,zone=a"
