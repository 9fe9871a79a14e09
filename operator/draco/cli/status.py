"""`draco status`: read the cluster once and show it.

Owns the options, the reading and the choice of output. What is shown is decided in `status_view`, how in `status_screen`.
"""

import asyncio
from pathlib import Path
from typing import TypeVar

import click
import msgspec
from rich.console import Console

from draco.cli import status_screen
from draco.cli.listing import listed
from draco.cli.status_schema import MissingView, Status
from draco.cli.status_view import Snapshot, status_of
from draco.kube.client import Client
from draco.kube.discovery import discover
from draco.kube.errors import Forbidden, KubeError, NotFound
from draco.kube.kubeconfig import connect
from draco.resources.core import Pod
from draco.resources.kinds import CLAIMS, DEVICE_MAINTENANCES, GPU_NODES, NODES, PODS, SLICES, Kind

T = TypeVar("T")

WIDTH = 10_000
"""Columns of the screen: a row is one line, as kubectl's are, and a narrow terminal breaks it; so lines can be searched."""


@click.command()
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Kubeconfig file [default: as kubectl finds it].",
)
@click.option("--context", help="Context of the kubeconfig [default: its current one].")
@click.option("-n", "--namespace", default="", help="List only the claims of this namespace.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "wide", "json"]),
    default="text",
    show_default=True,
    help="wide: every device and claim. json: one document of a stable schema.",
)
def command(kubeconfig: Path | None, context: str | None, namespace: str, output: str) -> None:
    """Show nodes, GPUs, claims, taints and maintenance on one screen.

    Works with the devices of every DRA driver. Reads only, and keeps nothing.
    """
    try:
        status = asyncio.run(_read(kubeconfig, context, namespace))
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    except ExceptionGroup as group:
        first = group.exceptions[0]  # the one that ended the other lists
        if isinstance(first, KubeError):
            raise click.ClickException(str(first)) from group
        raise first from group
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(status), indent=2).decode())
        return
    console = Console(highlight=False, soft_wrap=False, width=WIDTH)
    with console.capture() as screen:
        (status_screen.show_wide if output == "wide" else status_screen.show)(status, console)
    for line in screen.get().splitlines():
        click.echo(line.rstrip())  # tables are padded to their full width


async def _read(kubeconfig: Path | None, context: str | None, namespace: str) -> Status:
    async with Client(await connect(kubeconfig, context)) as client:
        features = await discover(client)
        server = str(client.connection.server)
        if not features.dra:
            raise click.ClickException(
                f"{server} does not serve resource.k8s.io/v1 (Dynamic Resource Allocation), which Draco needs: "
                "use Kubernetes 1.34 or newer, with the API group enabled."
            )
        missing = [
            MissingView(name=item.name, consequence=item.consequence, remedy=item.remedy) for item in features.missing
        ]
        reader = Reader(client)
        async with asyncio.TaskGroup() as tasks:
            nodes = tasks.create_task(reader.all(NODES))
            slices = tasks.create_task(reader.all(SLICES))
            claims = tasks.create_task(reader.all(CLAIMS))
            pods = tasks.create_task(reader.pending_pods())
            rules = tasks.create_task(reader.all(features.taint_rules)) if features.taint_rules else None
            gpu_nodes = tasks.create_task(reader.all_if_served(GPU_NODES))
            maintenances = tasks.create_task(reader.all_if_served(DEVICE_MAINTENANCES))
        absent = [
            kind.kind
            for kind, task in ((GPU_NODES, gpu_nodes), (DEVICE_MAINTENANCES, maintenances))
            if task.result() is None
        ]
        if absent:
            missing.append(
                MissingView(
                    name=", ".join(absent),
                    consequence="Draco is not installed here: no GPU health and no maintenance requests are shown.",
                    remedy="Install it with charts/draco, or apply crds/.",
                )
            )
        snapshot = Snapshot(
            nodes=nodes.result(),
            slices=slices.result(),
            claims=claims.result(),
            pods=pods.result(),
            rules=rules.result() if rules else [],
            gpu_nodes=gpu_nodes.result() or [],
            maintenances=maintenances.result() or [],
            missing=missing,
            unread=sorted(reader.unread),
        )
        return status_of(snapshot, server=server, namespace=namespace)


class Reader:
    """Reads whole collections, and remembers in sentences what of them could not be read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unread: list[str] = []

    async def all(self, kind: Kind[T]) -> list[T]:
        """Every object of the kind that can be read. Raises ClickException without the right to list them."""
        try:
            return await self._list(kind)
        except Forbidden as error:
            raise click.ClickException(
                f"These credentials may not list {kind.plural} in the whole cluster, which `draco status` needs: {error}"
            ) from error

    async def all_if_served(self, kind: Kind[T]) -> list[T] | None:
        """Objects of one of Draco's own kinds; None when the cluster does not know the kind."""
        try:
            return await self.all(kind)
        except NotFound:
            return None

    async def pending_pods(self) -> list[Pod]:
        """The pods that do not run yet. They only tell who waits for a claim, so that the screen does without them too."""
        try:
            return await self._list(PODS, {"fieldSelector": "status.phase=Pending"})
        except Forbidden:
            self.unread.append(
                "These credentials may not list pods in the whole cluster: which pods wait for a claim is not shown."
            )
            return []

    async def _list(self, kind: Kind[T], params: dict[str, str] | None = None) -> list[T]:
        return await listed(self._client, kind, self.unread, params)
