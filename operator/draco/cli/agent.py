"""`draco agent`: the program of a GPU node's DaemonSet. The work is done by `draco.agent`."""

from typing import Any

import click

from draco.agent.process import ApiServerAccess, run, with_options
from draco.kube.connect.connection import Connection
from draco.kube.connect.incluster import connect_in_cluster


async def connect(access: ApiServerAccess) -> Connection:
    """Connect to the API server; imports the kubeconfig library only if a kubeconfig is given."""
    if access.kubeconfig is None:
        return connect_in_cluster(mount=access.service_account)
    from draco.kube.connect import kubeconfig  # noqa: PLC0415 - would cost memory in an agent that runs in a pod

    return await kubeconfig.connect(access.kubeconfig)


@click.command()
@with_options
def command(**options: Any) -> None:
    """Serve this node's GPUs to Kubernetes.

    Publishes them as ResourceSlices, prepares claims for kubelet and reports in the node's GpuNode. Runs on every GPU node,
    usually from a DaemonSet.
    """
    run(connect, **options)
