"""Writes the configuration of a real node's programs: kubelet, containerd, kube-proxy and the pod network.

Pure: from a node's facts to the plan that its first process carries out. Must not touch the machine.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final

from draco_local.cluster.realnode.image import PAUSE_IMAGE
from draco_local.cluster.realnode.init import NodePlan, Service
from draco_local.cluster.realnode.network import MTU
from draco_local.simulator.gpus import procfs

KUBELET, CONTAINERD, KUBE_PROXY = "kubelet", "containerd", "kube-proxy"
KUBELET_PORT: Final = 10250
LABEL_REAL: Final = "draco.dev/real"
"""On nodes whose kubelet and containers are real."""

CONFIG_FOLDER: Final = "/run/draco/config"
AGENT_MOUNT: Final = "/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds its service account (/var/run is /run): the agent finds its own there too."""

DRIVER_ROOT: Final = "/run/nvidia/driver"
LIMIT_LIBRARY: Final = "/opt/hami/libvgpu.so"
"""Where a library that limits memory may be put on a node, to try SharingPolicies with enforcement Library."""
"""Where NVIDIA's GPU operator puts a driver."""

CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
KEPT_FOLDERS: Final = (
    *("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/lib/draco", "/var/log"),
    AGENT_MOUNT,
    DRIVER_ROOT,
)


@dataclass(frozen=True, slots=True)
class RealNodeFacts:
    """One node, as the cluster decided it. Folders and files are paths on the host, which the node sees too."""

    name: str
    address: IPv4Address
    pods: IPv4Network
    all_pods: IPv4Network
    disk: Path
    images: Path
    programs: Mapping[str, Path]
    cni_bin: Path
    kubelet_kubeconfig: Path
    proxy_kubeconfig: Path
    authority: Path
    cgroup: str
    feature_gates: Mapping[str, bool]
    labels: Mapping[str, str]
    gpus: int
    driver: Service | None
    agent: Service | None
    mps: Service | None
    may_lower_oom_score: bool
    snapshotter: str = "overlayfs"


def plan_node(facts: RealNodeFacts) -> NodePlan:
    """Make the whole plan of one node: mounts, files, devices, and what runs in which order."""
    containerd = facts.programs[CONTAINERD]
    ctr = [str(facts.programs["ctr"]), "--address", CONTAINERD_SOCKET]
    path = f"{containerd.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    runtime = Service(
        name=CONTAINERD,
        argv=[str(containerd), "--config", f"{CONFIG_FOLDER}/containerd.toml"],
        environment={"PATH": path},
    )
    labels = ",".join(f"{key}={value}" for key, value in sorted({LABEL_REAL: "true", **facts.labels}.items()))
    kubelet = Service(
        name=KUBELET,
        argv=[
            str(facts.programs[KUBELET]),
            *("--config", f"{CONFIG_FOLDER}/kubelet.json", "--kubeconfig", str(facts.kubelet_kubeconfig)),
            *("--hostname-override", facts.name, "--node-ip", str(facts.address), "--node-labels", labels),
            "-v=2",
        ],
        environment={"PATH": path},
    )
    proxy = Service(
        name=KUBE_PROXY,
        argv=[str(facts.programs[KUBE_PROXY]), "--config", f"{CONFIG_FOLDER}/kube-proxy.json"],
        environment={"PATH": path},
    )
    return NodePlan(
        name=facts.name,
        disk=str(facts.disk),
        kept=KEPT_FOLDERS,
        files={
            f"{CONFIG_FOLDER}/containerd.toml": containerd_config(facts),
            f"{CONFIG_FOLDER}/kubelet.json": json.dumps(kubelet_config(facts), indent=1),
            f"{CONFIG_FOLDER}/kube-proxy.json": json.dumps(proxy_config(facts), indent=1),
            "/etc/cni/net.d/10-pods.conflist": json.dumps(pod_network(facts), indent=1),
        },
        devices=gpu_devices(facts.gpus),
        runtime=runtime,
        services=[each for each in (facts.driver, kubelet, proxy, facts.agent, facts.mps) if each],
        ready_argv=[*ctr, "version"],
        images=str(facts.images),
        import_argv=[*ctr, "--namespace", "k8s.io", "images", "import"],
    )


def plan_json(plan: NodePlan) -> str:
    """Write the plan as the node's first process reads it."""
    return json.dumps(asdict(plan), indent=1)


def kubelet_config(facts: RealNodeFacts) -> dict[str, Any]:
    """KubeletConfiguration: cgroups below the node's own root, on version 1 as on version 2."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(facts.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": facts.cgroup,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "evictionHard": {"memory.available": "50Mi"},  # no limit for the disk: it is the host's
        "imageGCHighThresholdPercent": 100,
        "resolvConf": "",
        "nodeStatusUpdateFrequency": "2s",
        # When a driver did not answer, kubelet tries a pod's claims again only at its next sync: by default after a minute.
        "syncFrequency": "5s",
        "featureGates": dict(facts.feature_gates),
    }


def proxy_config(facts: RealNodeFacts) -> dict[str, Any]:
    """KubeProxyConfiguration: nftables, and no change to the machine's connection tracking."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(facts.proxy_kubeconfig)},
        "hostnameOverride": facts.name,
        "clusterCIDR": str(facts.all_pods),
        "conntrack": {"maxPerCore": 0},
        "metricsBindAddress": "127.0.0.1:10249",
    }


def pod_network(facts: RealNodeFacts) -> dict[str, Any]:
    """Return the CNI network: a veth pair per pod, addresses from the node's own range."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": str(facts.pods)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {"type": "ptp", "ipMasq": True, "mtu": MTU, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def containerd_config(facts: RealNodeFacts) -> str:
    """Containerd's configuration, version 3: CDI on, the pause image pinned, nothing fetched."""
    restrict = str(not facts.may_lower_oom_score).lower()
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "{facts.snapshotter}"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  restrict_oom_score_adj = {restrict}
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{facts.cni_bin}"]
    conf_dir = "/etc/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def gpu_devices(gpus: int) -> list[str]:
    """Return the device nodes below /dev that NVIDIA's driver makes for `gpus` GPUs and all instances they could have."""
    return [
        *(f"nvidia{minor}" for minor in range(gpus)),
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
        *procfs.capability_nodes(gpus),
    ]
