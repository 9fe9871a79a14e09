"""Connects from a pod with the mounted service account.

Owns where those files and variables are. Imports no client library: the node agent must stay small.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from draco.kube.connect.connection import Connection, TokenFile, trust
from draco.kube.errors import KubeconfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def runs_in_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether kubelet gave this process the address of the API server."""
    return "KUBERNETES_SERVICE_HOST" in environ and "KUBERNETES_SERVICE_PORT" in environ


def connect_in_cluster(environ: Mapping[str, str] = os.environ, *, mount: Path = SERVICE_ACCOUNT) -> Connection:
    """Connect as the pod's service account. Raises KubeconfigError outside a pod, or without a mounted account."""
    if not runs_in_cluster(environ):
        raise KubeconfigError(
            "this does not run in a pod (KUBERNETES_SERVICE_HOST is not set): "
            "name a kubeconfig with --kubeconfig, or start a cluster with `draco cluster up`"
        )
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    token, ca = mount / "token", mount / "ca.crt"
    if not token.exists():
        raise KubeconfigError(f"no service account token at {token}: set automountServiceAccountToken on the pod")
    try:
        tls = trust(ca)
    except OSError as error:  # includes SSLError
        raise KubeconfigError(
            f"cannot read the cluster's certificate authority at {ca} ({error.strerror or error}): look at the ConfigMap "
            "kube-root-ca.crt in the pod's namespace, which kubelet mounts there"
        ) from error
    address = f"[{host}]" if ":" in host else host
    return Connection(f"https://{address}:{port}", tls=tls, credentials=TokenFile(token))
