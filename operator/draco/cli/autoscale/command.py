"""`draco autoscale`: slice templates for nodes that do not exist yet, and whether the nodes of a group are alike."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from draco.cli.autoscale.groups import GroupsReport
from draco.cli.autoscale.groups import check as checked
from draco.cli.autoscale.templates import NoTemplate, annotations, of_board, of_node
from draco.cli.input.manifests import read_manifests
from draco.cli.input.reading import Reader, published_slices
from draco.cli.options import output_option, with_cluster
from draco.cli.output import echo, print_as, print_document, visible, warn
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.mig.known_boards import MODELS
from draco.resources.api.core import Node
from draco.resources.api.draco import MigPolicy
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import NODES
from draco.resources.texts import agreeing, counted, listed
from draco.resources.written.manifests import decode_own

KARPENTER: Final = "karpenter"
CLUSTER_API: Final = "cluster-api"


@click.group()
def command() -> None:
    """Tell autoscalers which devices new nodes will have."""


@command.command()
@click.argument("node", required=False, metavar="[NODE]")
@click.option("--board", metavar="BOARD", help=f"Instead of a node, a board that Draco knows: {', '.join(MODELS)}.")
@click.option("--count", type=click.IntRange(1, 64), metavar="N", help="With --board: how many GPUs the node has.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True),
    metavar="FILE",
    help="With --board: the manifest of the MigPolicy that divides the GPUs.",
)
@click.option("--name", default="", metavar="TYPE", help="Instance type of the template [default: node or board].")
@click.option(
    "--for",
    "form",
    type=click.Choice([KARPENTER, CLUSTER_API]),
    default=KARPENTER,
    show_default=True,
    help="karpenter: DynamicResources of an instance type. cluster-api: annotations of a MachineDeployment.",
)
@with_cluster
@output_option("yaml", "json")
def template(
    *,
    node: str | None,
    board: str | None,
    count: int | None,
    policy: Path | None,
    name: str,
    form: str,
    kubeconfig: Path | None,
    context: str | None,
    output: str,
) -> None:
    """Write what a new node of one kind will publish, so that an autoscaler can add the first one.

    Reads a live node, with all its drivers; or takes a board, with a MigPolicy if it is divided. A board has no driver
    versions, PCI addresses and NUMA nodes: selectors that ask for them match nothing. Reads only.

    \b
    draco autoscale template gpu-node-0 --name p5.48xlarge
    draco autoscale template --board H100-80GB --count 8 --policy policy.yaml -o json
    draco autoscale template gpu-node-0 --for cluster-api
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    if (node is None) == (board is None):
        raise click.UsageError("Give either a node or a board with --board.")
    if node is not None:
        if count is not None or policy is not None:
            raise click.UsageError("--count and --policy belong to --board.")
        templates = of_node(node, asyncio.run(published_slices(kubeconfig, context)))
    else:
        if count is None:
            raise click.UsageError("Give the number of GPUs of a node with --count.")
        templates = of_board(board or "", count, _policy(policy) if policy else None)
    by_cluster_api = form == CLUSTER_API
    document = (
        {"metadata": {"annotations": annotations(templates)}} if by_cluster_api else {name or node or board: templates}
    )
    print_as(output, document)


@command.command()
@click.option("--label", default="", metavar="KEY", help="Key of the node label that names the group.")
@with_cluster
@output_option("text", "json")
def check(*, label: str, kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Check that the nodes of each group publish the same devices.

    Autoscalers take one node of a group as the model of all. If nodes differ, they add useless nodes, or none. Node labels
    define the groups: those of Karpenter, EKS, GKE, AKS, eksctl and Cluster API, or --label. Reads only. The exit status is 1 if
    nodes differ.

    \b
    draco autoscale check
    draco autoscale check --label example.com/pool -o json
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    report = checked(*asyncio.run(_nodes_and_slices(kubeconfig, context)), label)
    if output == "json":
        print_document(report)
    else:
        _show(visible(report), label)
    if not report.alike:
        raise click.exceptions.Exit(1)


def _show(report: GroupsReport, label: str) -> None:
    for group in report.groups:
        nodes = counted(group.nodes, "node")
        if not group.different:
            echo(f"{group.group} ({nodes}): no differences")
            continue
        different = len(group.different)
        echo(
            f"{group.group} ({nodes}): {different} {agreeing(different, 'differs', 'differ')} from {group.model or 'others'}"
        )
        for node in group.different:
            echo(f"  {node.node}: {'; '.join(node.how)}")
    if not report.groups:
        how = f"has the label {label}" if label else "is in a group; name a label with --label"
        echo(f"No node with devices {how}.")
    elif report.ungrouped:
        echo(f"In no group: {listed(report.ungrouped)}.")


async def _nodes_and_slices(
    kubeconfig: Path | None, context: str | None
) -> tuple[Sequence[Node], Sequence[ResourceSlice]]:
    async with Client(await connect(kubeconfig, context)) as client:
        reader = Reader(client)
        found = await reader.all(NODES), await reader.slices()
    warn(reader.unread)
    return found


def _policy(file: Path) -> MigPolicy:
    read = [decode_own(manifest, source=source) for manifest, source in read_manifests([str(file)])]
    policies = [each for each in read if isinstance(each, MigPolicy)]
    if len(policies) != 1:
        raise NoTemplate(f"{file} has {len(policies)} MigPolicies; name a file with one.")
    return policies[0]
