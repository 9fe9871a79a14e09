"""Connects like kubectl: finds the credentials, and explains each failure.

Owns the search for kubeconfigs and the checks before anything is loaded. kubernetes_asyncio reads and authenticates, through
`authentication`, which is imported on demand: it takes 0.3 s and 40 MiB.
"""

import os
from pathlib import Path

from draco.kube.collector import collector_at_rest
from draco.kube.connect.connection import Connection
from draco.kube.connect.incluster import runs_in_cluster
from draco.kube.errors import KubeconfigError


async def connect(kubeconfig: Path | None = None, context: str | None = None) -> Connection:
    """Connect as the user of a kubeconfig's context (default: the current one).

    Without `kubeconfig`: the files in KUBECONFIG, else ~/.kube/config, else the pod's service account. The connection knows the
    context's namespace. Raises KubeconfigError. Sends nothing to the API server yet.
    """
    paths = _paths(kubeconfig)
    present = [path for path in paths if path.is_file()]
    in_pod = not present and kubeconfig is None and context is None and runs_in_cluster()
    if not present and not in_pod:
        raise KubeconfigError(
            f"no kubeconfig at {', '.join(str(path) for path in paths)}: "
            "name one with --kubeconfig or KUBECONFIG, or start a cluster with `draco cluster up`"
        )
    with collector_at_rest():  # 25 % faster
        from draco.kube.connect import authentication  # noqa: PLC0415 - see above

    return authentication.connect_in_pod() if in_pod else await authentication.connect_as(present, context)


def _paths(kubeconfig: Path | None) -> list[Path]:
    if kubeconfig is not None:
        return [_expanded(str(kubeconfig))]
    listed = os.environ.get("KUBECONFIG", "")
    if listed:
        return [_expanded(part) for part in listed.split(os.pathsep) if part]
    return [_expanded("~/.kube/config")]


def _expanded(path: str) -> Path:
    """The expanded path, or the unchanged one if there is no such home (then no file is found)."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib's raises RuntimeError then
