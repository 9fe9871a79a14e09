"""`draco health`: read what the agents report about their GPUs, and show it. `overview.health` fills the rows."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from draco.cli.input.reading import Reader, cluster_with_dra, group_members, without_kinds
from draco.cli.options import output_option, with_cluster
from draco.cli.output import CommandError, echo, print_document, visible, warn
from draco.cli.tables import print_table, table
from draco.overview.health import FaultView, GpuHealthView, HealthDocument, chosen, gpu_views, names_of, unidentified
from draco.resources.kinds import CLAIMS, DEVICE_MAINTENANCES, GPU_NODES, SLICES
from draco.resources.texts import counted, listed, nearest

_SHOWN: Final = 10


@click.command()
@click.argument("gpu", default="", metavar="[NODE | NODE/DEVICE | UUID]")
@click.option("--all", "every", is_flag=True, help="List healthy GPUs too.")
@with_cluster
@output_option("text", "json", text="json: one document of a stable schema.")
def command(gpu: str, every: bool, kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Show the GPUs that are not healthy: their worst fault, since when, what is done about it, and what to do.

    With a node or a GPU: all faults in the ledger of its agent, who uses it, and maintenance that is about it. Reads only.

    \b
    draco health
    draco health gpu-node-0/gpu-3
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    found = asyncio.run(_read(kubeconfig, context))
    views, unnamed = found.gpus, found.unidentified
    if gpu:
        views = chosen(found.gpus, gpu)
        unnamed = [each for each in unnamed if gpu in (each.node, each.uuid)]
        if not views and not unnamed:
            raise CommandError(f"no agent of Draco reports a node or GPU {gpu}{nearest(gpu, names_of(found.gpus))}")
    elif not every:
        views = [each for each in found.gpus if each.is_noteworthy]
    healthy = len(found.gpus) - len([each for each in found.gpus if each.is_noteworthy])
    if output == "json":
        document = msgspec.structs.replace(found, gpus=views, unidentified=unnamed)
        print_document(msgspec.structs.replace(document, total=len(found.gpus), healthy=healthy))
        return
    warn(found.unread)
    if gpu:
        for view in views:
            _show_one(visible(view))
    else:
        _show_all([visible(view) for view in views], len(found.gpus), unidentified=len(unnamed))
    for each in map(visible, unnamed):
        echo(f"{each.node}: GPU {each.uuid or each.index} takes no claims. {each.message}")


async def _read(kubeconfig: Path | None, context: str | None) -> HealthDocument:
    async with cluster_with_dra(kubeconfig, context) as (client, _):
        reader = Reader(client)
        async with asyncio.TaskGroup() as tasks:
            gpu_nodes = tasks.create_task(reader.all_if_served(GPU_NODES, "no GPU health is shown"))
            slices = tasks.create_task(reader.all(SLICES))
            claims = tasks.create_task(reader.all_if_allowed(CLAIMS, "who uses a GPU is not shown"))
            maintenances = tasks.create_task(
                reader.all_if_served(DEVICE_MAINTENANCES, "no maintenance requests are shown")
            )
        nodes = gpu_nodes.result()
        if nodes is None:
            raise without_kinds(client, GPU_NODES)
        views = gpu_views(
            nodes,
            slices=slices.result(),
            claims=claims.result(),
            members=await group_members(reader, claims.result()),
            maintenances=maintenances.result() or [],
        )
        return HealthDocument(gpus=views, unidentified=unidentified(nodes), unread=sorted(reader.unread))


def _show_all(views: Sequence[GpuHealthView], total: int, *, unidentified: int) -> None:
    if not total:
        if unidentified:
            return
        echo("No agent of Draco reports any GPU. `draco check` says whether agents run.")
        return
    if not views:
        if unidentified:
            echo(f"{counted(total, 'GPU')} healthy.")
        else:
            echo(f"All {counted(total, 'GPU')} are healthy." if total > 1 else "The GPU is healthy.")
        return
    rows = table("NODE", "GPU", "HEALTH", "WORST FAULT", "EFFECT", "SINCE", "POLICY", "WHAT TO DO")
    for view in views:
        worst = view.faults[0] if view.faults else None
        more = f" (+{len(view.faults) - 1})" if len(view.faults) > 1 else ""
        rows.add_row(
            view.node,
            view.device,
            view.health,
            f"{worst.name}{more}" if worst else "-",
            worst.effect if worst else "-",
            _since(worst.first_seen) if worst else "-",
            (worst.policy or "-") if worst else "-",
            (worst.message or worst.what_to_do) if worst else view.message or next(iter(view.notes), "-"),
        )
    print_table(rows)
    noteworthy = sum(view.is_noteworthy for view in views)
    if rest := total - len(views):
        echo(f"{counted(rest, 'other GPU')} healthy.")
    if noteworthy:
        first = next(view for view in views if view.is_noteworthy)
        echo(f"Details of one: draco health {first.node}/{first.device}")


def _show_one(view: GpuHealthView) -> None:
    echo(f"{view.node}/{view.device}: {view.health}")
    for name, text in (("UUID", view.uuid), ("Product", view.product), ("Message", view.message)):
        if text:
            echo(f"{name + ':':<9} {text}")
    for note in view.notes:
        echo(f"{'Note:':<9} {note}")
    if view.claims:
        echo(f"Claims:   {listed(view.claims, _SHOWN)}")
    if view.pods:
        echo(f"Pods:     {listed(view.pods, _SHOWN)}")
    if view.maintenances:
        echo(f"In maintenance by {listed(view.maintenances, _SHOWN)}")
    if view.faults:
        rows = table(
            "FAMILY", "FAULT", "SCOPE", "COUNT", "FIRST SEEN", "LAST SEEN", "ENDS", "CLEAN", "EFFECT", "POLICY", "WHAT"
        )
        for each in view.faults:
            rows.add_row(
                each.family,
                each.name,
                f"{each.scope} {each.instance}" if each.instance >= 0 else each.scope,
                str(each.count),
                _since(each.first_seen),
                _since(each.last_seen),
                "by repair" if each.latched else "automatically",
                str(each.clean_probes),
                each.effect,
                each.policy or "-",
                each.message or each.what_to_do,
            )
        print_table(rows)
        _advise(view.faults)
    echo()


def _advise(faults: Sequence[FaultView]) -> None:
    for family in dict.fromkeys(each.family for each in faults):
        what = next(each.what_to_do for each in faults if each.family == family)
        echo(f"{family}: {what} (docs/runbooks/{family}.md).")


def _since(text: str) -> str:
    if not text:
        return "-"
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
