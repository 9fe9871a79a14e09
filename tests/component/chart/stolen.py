"""An API server of a given version with the chart, objects worth tampering with, and tokens of pods.

A token is what kubelet would give a pod of that account on that node: requested by TokenRequest and bound to the pod, so the API
server itself puts the node's name into it. No scheduler or controller runs: only the test changes objects.
"""

import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco_local.cluster.controlplane import ControlPlane
from draco_local.cluster.programs import binaries
from tests.component.chart.rendering import CHART, IMAGE, NAMESPACE, helm
from tests.doubles.token import FixedToken
from tests.requests import ONLY_METADATA, RefusedError, call

PERMISSIVE = "draco-releasing"
"""Where a second operator is installed, with operator.releaseIdleClaims on."""
WORKING = "draco-working"
"""Where a third one is installed, with operator.runJobs on."""
JOB_SPACE = "draco-jobs"
"""Where it creates Jobs, from the CronJobs plain and rich; a third one that it may use is missing."""
TENANT = "tenant"
DRIVER, OTHER_DRIVER = "gpu.nvidia.com", "nic.example.com"
MINE, OTHER = "node-a", "node-b"
_DOMAIN = ".".join(4 * ["a-rather-long-part-of-the-name-of-a-companys-own-domain"])
LONG = f"ip-10-20-30-40.{_DOMAIN}".ljust(252, "x") + "1"
LONG_TOO = f"{LONG[:-1]}2"
"""Node names of the maximum length that differ only at the end."""

API = "/apis/resource.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


class Cluster:
    """One API server, and tokens by owner: agent, operator, releasing, working, and two other agents.

    `remote` is on a node with a long name, `homeless` on none.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.tokens: dict[str, str] = {}

    def install(self) -> None:
        """Install the chart with default values, operators that may release claims or run Jobs, nodes, pods and objects."""
        self._install("draco", NAMESPACE)
        # By kubectl, because helm would refuse a second release.
        for namespace, release, more in (
            (PERMISSIVE, "releasing", "operator.releaseIdleClaims=true"),
            (WORKING, "working", "operator.runJobs=true,operator.jobTemplates={plain,rich,missing}"),
        ):
            self.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            self._apply(release, namespace, "--set", f"crds.enabled=false,profile=operator-only,{more}")
        for name, job in (("plain", PLAIN_JOB), ("rich", RICH_JOB)):
            template = {"schedule": "0 0 31 2 *", "suspend": True, "jobTemplate": {"spec": job}}
            path = f"/apis/batch/v1/namespaces/{JOB_SPACE}/cronjobs"
            self.call("POST", path, {"metadata": {"name": name}, "spec": template})
        for node in (MINE, OTHER, LONG, LONG_TOO):
            self.call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
            said = {"apiVersion": "v1", "kind": "Node", "status": {"conditions": [ready]}}
            self.call("PATCH", f"/api/v1/nodes/{node}/status?fieldManager=kubelet", said)
        self.tokens = {
            "agent": self._token(NAMESPACE, "draco-agent", node=MINE),
            "remote": self._token(NAMESPACE, "draco-agent", node=LONG),
            "homeless": self._token(NAMESPACE, "draco-agent", node=""),
            "operator": self._token(NAMESPACE, "draco-operator", node=OTHER),
            "releasing": self._token(PERMISSIVE, "releasing-operator", node=OTHER),
            "working": self._token(WORKING, "working-operator", node=OTHER),
        }
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": TENANT}})
        self._make_objects()

    def call(self, method: str, path: str, body: object = None, *, accept: str = "application/json") -> dict[str, Any]:
        """Make a request as administrator."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return call(self.plane, method, path, body, accept=accept)
            except RefusedError as error:
                # A kind that was just defined asks to retry, or is not served yet.
                if error.code not in (404, 429) or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    @asynccontextmanager
    async def holding(self, token: str) -> AsyncIterator[Client]:
        """A client with this token."""
        tls = ssl.create_default_context(cafile=str(self.plane.pki / "ca.crt"))
        async with Client(Connection(self.plane.server, tls=tls, credentials=FixedToken(self.tokens[token]))) as client:
            yield client

    def state(self) -> dict[str, str]:
        """Versions of all objects worth tampering with, by path."""
        found = {}
        for path in (
            f"{API}/resourceslices",
            f"{API}/resourceclaims",
            "/apis/draco.dev/v1alpha1/gpunodes",
            "/apis/draco.dev/v1alpha1/gpuusages",
            "/apis/draco.dev/v1alpha1/migpolicies",
            "/apis/draco.dev/v1alpha1/devicemaintenances",
            "/api/v1/nodes",
            "/api/v1/pods",
            "/api/v1/events",
            "/apis/batch/v1/jobs",
            f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            f"{_ADMISSION}/validatingadmissionpolicies",
            f"{_ADMISSION}/validatingadmissionpolicybindings",
        ):
            for item in self.call("GET", path, accept=ONLY_METADATA)["items"] or []:
                meta = item["metadata"]
                found[f"{path} {meta.get('namespace', '')}/{meta['name']}"] = f"{meta['uid']} {meta['resourceVersion']}"
        return found

    def _install(self, release: str, namespace: str) -> None:
        here = ("--kubeconfig", self.plane.kubeconfig, "--namespace", namespace)
        done = helm("install", release, CHART, *here, *IMAGE, "--create-namespace")
        assert done.returncode == 0, done.stderr

    def _apply(self, release: str, namespace: str, *arguments: str) -> None:
        rendered = helm("template", release, CHART, "--namespace", namespace, "--no-hooks", *IMAGE, *arguments).stdout
        kubectl = [str(binaries.find("kubectl")["kubectl"]), "--kubeconfig", str(self.plane.kubeconfig)]
        apply = [*kubectl, "apply", "--server-side", "--force-conflicts", "-f", "-"]
        done = subprocess.run(apply, input=rendered, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _token(self, namespace: str, account: str, *, node: str) -> str:
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if node:
            name = f"{account}-on-{node}"[:60].strip("-.")
            containers = [{"name": "main", "image": "none"}]
            pod = {
                "metadata": {"name": name},
                "spec": {"serviceAccountName": account, "nodeName": node, "containers": containers},
            }
            uid = self.call("POST", f"/api/v1/namespaces/{namespace}/pods", pod)["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        token: str = self.call("POST", path, {"spec": spec})["status"]["token"]
        return token

    def _make_objects(self) -> None:
        for node in (MINE, OTHER):
            self.make_slice(a_slice(f"{node}-real", nodeName=node, pool=node))
            path = "/apis/draco.dev/v1alpha1/gpunodes"
            wanted = {"gpus": [{"uuid": f"GPU-{node}", "policy": "p", "mode": "Dynamic"}]}
            self.call("POST", path, {**_KIND_OF_GPU_NODE, "metadata": {"name": node}, "spec": wanted})
        usage = {"apiVersion": "draco.dev/v1alpha1", "kind": "GpuUsage", "metadata": {"name": OTHER}}
        self.call("POST", "/apis/draco.dev/v1alpha1/gpuusages", usage)
        self.make_slice(a_slice("others", nodeName=MINE, pool=MINE, driver=OTHER_DRIVER))
        self.make_slice(a_slice("everywhere", allNodes=True, pool="everywhere"))
        nic = {"driver": OTHER_DRIVER, "pool": MINE, "device": "gpu-0"}
        self.make_claim("here", on=MINE, results=[a_result(MINE), {**nic, "request": "gpu"}], devices=[nic])
        self.make_claim("there", on=OTHER, results=[a_result(OTHER)])
        self.make_claim("theirs", on=MINE, results=[{**nic, "request": "gpu"}])
        self.make_claim("waiting", on="", results=[])
        victim = {"metadata": {"name": "victim"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        self.call("POST", f"/api/v1/namespaces/{TENANT}/pods", victim)
        for name in (MINE, OTHER):
            self.call("POST", "/api/v1/namespaces/default/events", an_event(f"about-{name}", name))
        for name in ("draco-operator", f"draco-agent-{OTHER}"):
            lease = {"metadata": {"name": name}, "spec": {"holderIdentity": name}}
            self.call("POST", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases", lease)

    def make_slice(self, item: dict[str, Any]) -> None:
        """Create a slice as administrator."""
        self.call("POST", f"{API}/resourceslices", item)

    def make_claim(
        self,
        name: str,
        *,
        on: str,
        results: list[dict[str, Any]],
        devices: list[dict[str, Any]] | None = None,
        reserved: bool = True,
    ) -> None:
        """A claim, allocated by the scheduler if `results` are given."""
        path = f"{API}/namespaces/{TENANT}/resourceclaims"
        requests = [{"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": max(1, len(results))}}]
        claim = self.call("POST", path, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
        if results:
            status = {"allocation": an_allocation(on, results), "devices": devices or []}
            if reserved:
                status["reservedFor"] = [{"resource": "pods", "name": "victim", "uid": "victim"}]
            self.call("PUT", f"{path}/{name}/status", {**claim, "status": status})


PLAIN_JOB: dict[str, Any] = {
    "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}}
}
RICH_JOB: dict[str, Any] = {
    "backoffLimit": 0,
    "activeDeadlineSeconds": 60,
    "ttlSecondsAfterFinished": 60,
    "suspend": True,
    "parallelism": 1,
    "completions": 2,
    "completionMode": "Indexed",
    "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]},
    "template": {
        "metadata": {
            "name": "named",
            "labels": {"app": "reset"},
            "annotations": {"draco.dev/run-seconds": "1"},
        },
        "spec": {
            "restartPolicy": "Never",
            "hostPID": True,
            "hostNetwork": False,
            "serviceAccountName": "vendor",
            "automountServiceAccountToken": False,
            "priorityClassName": "",
            "terminationGracePeriodSeconds": 5,
            "nodeSelector": {"nvidia.com/gpu.present": "true"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "enableServiceLinks": False,
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["repo"]}],
            "imagePullSecrets": [{"name": "pull"}],
            "dnsConfig": {"searches": ["example.com"]},
            "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "Unconfined"}},
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}],
            "volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}, {"name": "empty", "emptyDir": {}}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": each, "operator": "Exists"}]} for each in ("one", "two")
                        ]
                    }
                },
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}
                    ]
                },
            },
            "initContainers": [{"name": "first", "image": "none", "command": ["true"]}],
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "command": ["nvidia-smi"],
                    "args": ["--gpu-reset"],
                    "workingDir": "/tmp",
                    "env": [
                        {"name": "A", "value": "b"},
                        {"name": "DRACO_NODE", "value": "?"},
                        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    ],
                    "envFrom": [{"configMapRef": {"name": "settings"}}],
                    "resources": {
                        "requests": {"cpu": "1000m", "memory": "1Gi"},
                        "limits": {"memory": "1024Mi"},
                        "claims": [{"name": "nic"}],
                    },
                    "volumeMounts": [{"name": "dev", "mountPath": "/dev"}],
                    "securityContext": {"privileged": True},
                    "ports": [{"containerPort": 80}],
                    "livenessProbe": {"exec": {"command": ["true"]}},
                },
                {"name": "beside", "image": "none"},
            ],
        },
    },
}
"""A Job that sets a bit of every kind of field."""

_KIND_OF_GPU_NODE = {"apiVersion": "draco.dev/v1alpha1", "kind": "GpuNode"}


def a_slice(name: str, *, pool: str, driver: str = DRIVER, generation: int = 1, **where: Any) -> dict[str, Any]:
    """A slice with one device."""
    devices: list[dict[str, Any]] = [{"name": "gpu-0"}]
    if "perDeviceNodeSelection" in where:
        devices[0]["nodeName"] = MINE
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
            **where,
        },
    }


def a_result(pool: str, device: str = "gpu-0") -> dict[str, Any]:
    """An allocation result of Draco's driver."""
    return {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}


def an_allocation(node: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """An allocation of devices on one node."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    return {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}}


def an_event(name: str, about: str, *, kind: str = "Node", namespace: str = "default") -> dict[str, Any]:
    """An Event about an object of this name."""
    regarding = {"kind": kind, "apiVersion": "v1", "name": about}
    if kind != "Node":
        regarding["namespace"] = namespace
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": regarding,
        "reason": "Said",
        "message": "something",
        "type": "Warning",
    }
