"""`draco cluster`: a local Kubernetes with GPUs, like kind's, without Docker.

Owns the options and what is printed. Making and removing clusters is in `draco_local.cluster`.
"""

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from draco.cli.options import output_option
from draco.cli.output import print_document
from draco.resources.kinds import NODES
from draco_local.cli import cluster_gpus
from draco_local.cluster import attach, clusters, state
from draco_local.cluster.errors import ClusterError
from draco_local.cluster.programs import binaries
from draco_local.cluster.progress import LineProgress
from draco_local.cluster.state import ClusterSpec

_NAME = click.option("--name", default="draco", show_default=True, metavar="NAME", help="Name of the cluster.")


@click.group()
def command() -> None:
    """Run a local Kubernetes cluster with simulated GPUs.

    Nothing is installed and no Docker is needed: Kubernetes' own programs are downloaded once (or built from pinned sources),
    cached, and run as plain processes. ~/.kube/config is not touched.
    """


command.add_command(cluster_gpus.command)


@command.command()
@_NAME
@click.option(
    "--nodes", default=2, show_default=True, type=click.IntRange(0, 5000), metavar="N", help="Simulated GPU nodes."
)
@click.option(
    "--gpus", default=8, show_default=True, type=click.IntRange(min=0), metavar="N", help="GPUs of each node."
)
@click.option(
    "--board",
    metavar="BOARD",
    default="H100-80GB",
    show_default=True,
    help="GPU model, for example A100-40GB, B200 or L40S.",
)
@click.option(
    "--real-nodes",
    default=0,
    show_default=True,
    type=click.IntRange(0, 200),
    metavar="N",
    help="Nodes that run containers (needs root).",
)
@click.option(
    "--from-image",
    default="",
    metavar="ARCHIVE",
    help="Install Draco on real nodes as users do, with helm and this image.",
)
@click.option("--kubernetes", default="", metavar="VERSION", help="Kubernetes version.  [default: 1.36.3]")
@click.option(
    "--features",
    type=click.Choice(["all", "default", "gangs"]),
    default="all",
    show_default=True,
    help="DRA features: all, those on by default in Kubernetes, or all with PodGroups.",
)
@click.option(
    "--provider", type=click.Choice(["local", "kind"]), default="local", show_default=True, help="What runs Kubernetes."
)
@click.option("--existing", default="", metavar="KUBECONFIG", help="Attach nodes and operator to this cluster instead.")
@click.option("--bin-dir", default="", metavar="FOLDER", help="Take Kubernetes' programs from this folder.")
@click.option(
    "--mirror",
    default="",
    envvar=binaries.MIRROR,
    show_envvar=True,
    metavar="URL",
    help='Download missing programs from this address; "none" builds them.  [default: their publishers]',
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="The API server's port.  [default: any free one]",
)
@click.option(
    "--node-prefix", metavar="PREFIX", default="gpu-node", show_default=True, help="Name prefix of simulated nodes."
)
@click.option("--operator/--no-operator", default=True, help="Run Draco's operator.  [default: yes]")
@click.option(
    "--allocate",
    is_flag=True,
    help="Let the operator allocate GPUs that MigPolicies hand over (spec.allocator: Operator).",
)
@click.option(
    "--wait",
    default=180.0,
    show_default=True,
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait for nodes and GPUs; 0 does not wait.",
)
def up(name: str, provider: str, existing: str, wait: float, mirror: str, **settings: Any) -> None:
    """Start a cluster."""
    if existing and provider == "kind":
        raise click.UsageError("--existing and --provider kind exclude each other: a cluster has one provider.")
    if existing and settings["real_nodes"]:
        raise click.UsageError("--existing and --real-nodes exclude each other: an existing cluster has its own nodes.")
    if settings["from_image"]:
        if existing:
            raise click.UsageError("--from-image needs nodes of this machine: leave out --existing.")
        if not settings["real_nodes"]:
            raise click.UsageError("--from-image needs nodes that run containers: add --real-nodes 2.")
    if settings["allocate"] and not settings["from_image"] and (existing or provider == "kind"):
        raise click.UsageError(
            "--allocate needs an operator with an account of its own: leave out --existing and --provider kind, "
            "or install Draco with --from-image."
        )
    wanted = msgspec.convert(
        {**settings, "existing": existing, "provider": "existing" if existing else provider}, ClusterSpec
    )
    began = time.monotonic()
    cluster = clusters.up(name, wanted, progress=LineProgress(), wait_s=wait, mirror=mirror)
    click.echo(f"\nCluster {name} is up after {time.monotonic() - began:.0f} s. To use it:\n")
    click.echo(f"  export KUBECONFIG={cluster.kubeconfig}")
    click.echo("  draco status")
    click.echo(f"  {_kubectl(wanted)} get resourceslices")
    click.echo(f"\nTo remove it: draco cluster down{_name_option(name)}")


@command.command()
@_NAME
def down(name: str) -> None:
    """Stop a cluster and remove all of it."""
    clusters.down(name, progress=LineProgress())


@command.command()
@_NAME
@output_option("text", "json")
def status(name: str, output: str) -> None:
    """Show a cluster's processes and nodes."""
    now = clusters.status(name)
    ready = _ready_nodes(Path(now.kubeconfig)) & set(now.nodes)
    if output == "json":
        shown = {**msgspec.to_builtins(now), "readyNodes": sorted(ready)}
        print_document(shown)
    else:
        kubernetes = f", Kubernetes {now.kubernetes}" if now.kubernetes else ""
        click.echo(
            f"Cluster {now.name} ({now.provider}{kubernetes}): {now.phase}, created {now.created:%Y-%m-%d %H:%M} UTC"
        )
        for each in now.components:
            life = "alive" if each.alive else f"DEAD (see {each.log})"
            click.echo(f"  {each.name:<26}{each.pid:>8}  {life}")
        click.echo(f"  {'nodes':<26}{'':>8}  {len(ready)} of {len(now.nodes)} Ready")
    if now.phase != "ready" or not all(each.alive for each in now.components) or len(ready) < len(now.nodes):
        sys.exit(1)


@command.command()
@_NAME
def kubeconfig(name: str) -> None:
    """Print a cluster's kubeconfig."""
    path = clusters.opened(name).kubeconfig
    try:
        click.echo(path.read_text(), nl=False)
    except FileNotFoundError:
        raise ClusterError(
            f"Cluster {name} has no kubeconfig yet: wait for `draco cluster up`, or run it again."
        ) from None


@command.command("list")
def list_() -> None:
    """Print the names of your clusters."""
    for name in state.names():
        click.echo(name)


def _ready_nodes(path: Path) -> set[str]:
    async def ask() -> set[str]:
        async with attach.client_of(path) as client:
            return {node.metadata.name for node in await client.list(NODES) if node.ready}

    try:
        return asyncio.run(ask())
    except ClusterError:
        return set()


def _kubectl(wanted: ClusterSpec) -> str:
    """`kubectl` if there is one, else the path of the one that came with the cluster's programs."""
    if shutil.which("kubectl") or wanted.provider != "local":
        return "kubectl"
    folder = Path(wanted.bin_dir) if wanted.bin_dir else None
    version = wanted.kubernetes or binaries.kubernetes_version(bin_dir=folder)
    return str(binaries.find("kubectl", kubernetes=version, bin_dir=folder)["kubectl"])


def _name_option(name: str) -> str:
    return "" if name == "draco" else f" --name {name}"
