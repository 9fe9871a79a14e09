"""An agent on simulated GPUs: `python -m draco_local.simulator.agent --state FILE`, and the options of `draco agent`.

Owns giving the agent simulated NVML; the product has no switch for it. Where the node has the simulated driver installed, the
agent loads its library as on hardware; elsewhere the simulator runs in the agent's own process. The node's sysfs and its part of
/proc are written beside the state file.
"""

from pathlib import Path
from typing import Any

import click

from draco.agent.process import ApiServerAccess, run, with_options
from draco.kube.connect import kubeconfig
from draco.kube.connect.connection import Connection
from draco.kube.connect.incluster import connect_in_cluster
from draco.resources.errors import DracoError, leaves
from draco_local.simulator.driver.library import SOCKET
from draco_local.simulator.gpus import procfs, state, sysfs
from draco_local.simulator.nvml.library import SimulatedNvml
from draco_local.simulator.nvml.nvidia_smi import SimulatedSmi


async def connect(access: ApiServerAccess) -> Connection:
    """Connect to the API server."""
    if access.kubeconfig is None:
        return connect_in_cluster(mount=access.service_account)
    return await kubeconfig.connect(access.kubeconfig)


@click.command()
@click.option(
    "--state",
    "state_file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="State of the simulated GPUs.",
)
@with_options
def main(state_file: Path, **options: Any) -> None:
    """Serve simulated GPUs to Kubernetes with the real agent."""
    try:
        gpus = state.load(state_file)
        tree = sysfs.tree(state_file)
        sysfs.build(tree, gpus)
        roots = {"sysfs_root": tree, "proc_root": procfs.build(state_file, gpus)}
        installed = options["driver_root"] is not None and Path(SOCKET).is_socket()
        simulated = (
            {} if installed else {"library": SimulatedNvml(state_file), "smi": SimulatedSmi(SimulatedNvml(state_file))}
        )
        run(connect, **{**simulated, **options, **roots})
    except (DracoError, ExceptionGroup) as error:
        causes = list(leaves(error))
        if not all(isinstance(cause, DracoError) for cause in causes):
            raise
        raise click.ClickException("; ".join(dict.fromkeys(map(str, causes)))) from error


if __name__ == "__main__":
    main()
