"""Operators in pods: a pod of the chart's account, and the token that kubelet would request for it by TokenRequest.

No kubelet runs the pod. Only what the API server reads from the token counts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from draco_local.cluster.controlplane import ControlPlane
from tests.component.allocation.lab import Guarded
from tests.component.chart.rendering import NAMESPACE
from tests.requests import call

ACCOUNT = "draco-operator"
_CORE = f"/api/v1/namespaces/{NAMESPACE}"


class OperatorPod(Guarded):
    """A pod, and its operator's access to the control plane."""

    uid: str = ""


@contextmanager
def operator_pod(plane: ControlPlane, folder: Path, name: str) -> Iterator[OperatorPod]:
    """A pod, deleted afterwards."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    call(plane, "PATCH", f"{_CORE}/serviceaccounts/{ACCOUNT}?fieldManager=tests", account)
    spec = {"serviceAccountName": ACCOUNT, "schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
    made = call(plane, "POST", f"{_CORE}/pods", {"metadata": {"name": name}, "spec": spec})["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": made["uid"]}
    asked = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
    token = call(plane, "POST", f"{_CORE}/serviceaccounts/{ACCOUNT}/token", asked)["status"]["token"]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": plane.server, "certificate-authority": str(plane.pki / "ca.crt")}}
        ],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path = folder / name
    path.write_text(yaml.safe_dump(config))
    try:
        yield OperatorPod(path, made["uid"])
    finally:
        call(plane, "DELETE", f"{_CORE}/pods/{name}?gracePeriodSeconds=0")
