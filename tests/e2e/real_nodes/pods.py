"""Pods with GPU claims for real nodes, and views of them from inside the container and on the node."""

import functools
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from draco.agent.record import checkpoint
from draco.agent.record.contents import PreparedClaim
from draco_local.cluster.realnode.image import BUSYBOX_IMAGE
from tests.e2e.kubectl import Kubectl, StillFalseError, eventually
from tests.e2e.provider import GPUS
from tests.e2e.real_nodes.machines import Machines, service_pid

DRIVER = "gpu.nvidia.com"
WHOLE_GPUS = {f"gpu-{index}" for index in range(GPUS)}
"""What a node publishes while none of its GPUs is divided."""
STARTS_WITHIN_S = 120.0
"""Kubelet waits 10, 20 and 40 s between attempts to start a container whose hook failed."""
RETURNS_WITHIN_S = 60.0
"""After a power-off: kubelet waits for its node, makes a new sandbox, and prepares the claim again."""


def claim(name: str) -> dict[str, Any]:
    """A claim for any one GPU."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


def pod(name: str, *, node: str, claims: str = "") -> dict[str, Any]:
    """A pod on `node` that uses the claim, if one is named, and ends promptly on SIGTERM."""
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.2; done"],
        "resources": {"claims": [{"name": "gpu"}] if claims else []},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 5,
            "dnsPolicy": "Default",
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claims}] if claims else [],
            "containers": [container],
        },
    }


@dataclass(frozen=True)
class Bench:
    """One namespace, and the node that its pods run on."""

    kube: Kubectl
    nodes: Machines
    node: str

    def start(self, *names: str) -> None:
        """Start pods, each with a claim of the same name, and wait until they run."""
        self.apply([each for name in names for each in (claim(name), pod(name, node=self.node, claims=name))])
        self.wait(*names)

    def apply(self, documents: Sequence[dict[str, Any]]) -> None:
        """Apply manifests."""
        self.kube.apply_objects(*documents)

    def wait(self, *names: str) -> None:
        """Wait until the pods are ready."""
        for name in names:
            try:
                eventually(functools.partial(self.ready, name), within_s=STARTS_WITHIN_S, what=f"pod {name} is ready")
            except StillFalseError as error:
                notes = [*self.kube.notes(name), *self.kube.notes(name, "Pod")]
                raise StillFalseError(f"{error}; Events: {notes}") from error

    def delete(self, name: str) -> None:
        """Delete a pod and wait until it is gone; its claim stays."""
        self.kube.run("delete", "pod", name, "--wait=false")
        eventually(lambda: not self.exists("pod", name), within_s=STARTS_WITHIN_S, what=f"pod {name} is gone")

    def exists(self, kind: str, name: str) -> bool:
        """Whether the object exists."""
        return any(each["metadata"]["name"] == name for each in self.kube.objects(kind))

    def ready(self, name: str) -> bool:
        """Whether the pod is Ready."""
        conditions = self.kube.get("pod", name)["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def container(self, name: str) -> str:
        """The id of the pod's running container; "" while none runs."""
        statuses = self.kube.get("pod", name)["status"].get("containerStatuses", [])
        return next((str(each["containerID"]) for each in statuses if "running" in each["state"]), "")

    def returned(self, name: str, old_container: str) -> bool:
        """Whether the pod is ready in a new container."""
        return self.container(name) not in {"", old_container} and self.ready(name)

    def inside(self, name: str, *command: str) -> str:
        """Output of a command in the pod's container."""
        return self.kube.run("exec", name, "--", *command).stdout

    def environment(self, name: str) -> dict[str, str]:
        """The environment of the pod's container."""
        return dict(line.split("=", 1) for line in self.inside(name, "env").splitlines())

    def gpu_uuids(self, name: str) -> list[str]:
        """GPU UUIDs in the environment of the pod's container."""
        return [value for key, value in self.environment(name).items() if key.startswith("DRACO_DEVICE_")]

    def gpu_nodes(self, name: str) -> set[str]:
        """The per-GPU device nodes in the pod's container: nvidia0 and so on."""
        return {each for each in self.inside(name, "ls", "/dev").split() if each.removeprefix("nvidia").isdecimal()}

    def device(self, name: str) -> str:
        """The claim's device; "" if it has none."""
        ((_, device),) = self.kube.devices(name) or [("", "")]
        return device

    def uid(self, name: str) -> str:
        """The claim's UID."""
        return str(self.kube.get("resourceclaim", name)["metadata"]["uid"])

    def on_node(self, *argv: str) -> str:
        """Output of a command on the node."""
        done = self.nodes.exec_on_node(self.node, argv)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
        return done.stdout

    def specs(self) -> str:
        """The names of the CDI specs on the node."""
        return self.on_node("ls", "/var/run/cdi")

    def spec_files(self) -> list[str]:
        """Paths of the CDI specs on the node."""
        return [f"/var/run/cdi/{name}" for name in self.specs().split()]

    def checkpoint(self) -> list[PreparedClaim]:
        """The claims that the agent holds prepared."""
        text = self.on_node("cat", f"/var/lib/kubelet/plugins/{DRIVER}/checkpoint.json")
        return list(checkpoint.read(text.encode()).claims.values())

    def prepared(self, name: str) -> bool:
        """Whether the agent holds the claim prepared, with its spec in place."""
        uid = self.uid(name)
        return uid in self.specs() and any(each.uid == uid for each in self.checkpoint())

    def released(self, name: str) -> bool:
        """Whether nothing of the claim is left on the node and it is deallocated."""
        uid = self.uid(name)
        held = uid in self.specs() or any(each.uid == uid for each in self.checkpoint())
        return not held and not self.device(name)

    def published(self) -> set[str]:
        """The devices in the node's slices."""
        slices = self.kube.objects("resourceslices")
        return {
            device["name"]
            for each in slices
            if each["spec"].get("nodeName") == self.node and each["spec"]["driver"] == DRIVER
            for device in each["spec"].get("devices", [])
        }

    def slice_of(self, node: str) -> str:
        """The name of the slice that the agent of some node published."""
        names = [
            each["metadata"]["name"] for each in self.kube.objects("resourceslices") if each["spec"]["nodeName"] == node
        ]
        assert len(names) == 1
        return str(names[0])

    def as_holder_of(self, token: str, *arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
        """Run kubectl with only this token; `given` is its standard input."""
        user = {"name": "holder", "user": {"token": token}}
        mine = yaml.safe_load(self.kube.kubeconfig.read_text())
        for each in mine["contexts"]:
            each["context"]["user"] = user["name"]
        theirs = self.kube.kubeconfig.with_name("kubeconfig-of-holder")
        theirs.touch(mode=0o600)
        theirs.write_text(yaml.safe_dump(mine | {"users": [user]}))
        command = [str(self.kube.binary), "--kubeconfig", str(theirs), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False)

    def agent_token(self) -> str:
        """The token of the node's agent, from its pod or from the node."""
        agents = ["--namespace=draco-system", "-l", "app.kubernetes.io/component=agent"]
        on_node = ["--field-selector", f"spec.nodeName={self.node}"]
        token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
        pods = self.kube.run("get", "pods", *agents, *on_node, "-o", "name").stdout.split()
        if not pods:
            return self.on_node("cat", token)
        return self.kube.run("exec", "--namespace=draco-system", pods[0], "--", "cat", token).stdout

    def agent_is_a_pod(self) -> bool:
        """Whether the agents were installed as users install them."""
        agents = ["--namespace=draco-system", "-l", "app.kubernetes.io/component=agent"]
        return bool(self.kube.run("get", "pods", *agents, "-o", "name").stdout)

    def kill(self, service: str) -> int:
        """Kill a service of the node and return which process it was."""
        pid = service_pid(self.nodes, self.node, service)
        assert pid is not None, f"{service} does not run"
        assert self.nodes.exec_on_node(self.node, ["sh", "-c", f"kill -KILL {pid}"]).returncode == 0
        return pid

    def restarted(self, service: str, *, before: int) -> None:
        """Wait until the service runs again, as another process."""
        eventually(
            lambda: service_pid(self.nodes, self.node, service) not in {None, before},
            within_s=STARTS_WITHIN_S,
            what=f"{service} runs again",
        )

    def registered(self) -> bool:
        """Whether kubelet accepted the agent's driver, as the node's GpuNode says."""
        return "True" in self.kube.run("get", "gpunode", self.node, "-o", "jsonpath={.status.conditions}").stdout
