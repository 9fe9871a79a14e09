"""`draco status`: read the cluster once and show it. `overview.status` decides what is shown, `screen` how."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click

from draco.cli.input.reading import Reader, cluster_with_dra, group_members, missing_of, pods_and_budgets
from draco.cli.options import output_option, with_cluster
from draco.cli.output import print_document, visible
from draco.cli.status import screen as status_screen
from draco.cli.tables import print_screen
from draco.kube.discovery import autoscalers
from draco.maintenance.taint_impact import spares_extended_resources
from draco.maintenance.taint_rules import is_draco_own
from draco.overview.hardware_use import HardwareByPool
from draco.overview.installation import OPERATORS, leading
from draco.overview.maintenances import claims_held
from draco.overview.snapshot import Snapshot
from draco.overview.status import status_of
from draco.overview.status_schema import ClusterStatus, MissingView
from draco.overview.taint_rules import TaintedCluster
from draco.resources.kinds import (
    CLAIMS,
    DEVICE_LIMITS,
    DEVICE_MAINTENANCES,
    DEVICE_RESERVATIONS,
    GPU_NODES,
    LEASES,
    MAINTENANCE_BUDGETS,
    MIG_POLICIES,
    NODES,
    PODS,
    SHARING_POLICIES,
    SLICES,
    Kind,
)

_OWN: Final[Mapping[Kind[Any], str]] = MappingProxyType(
    {
        GPU_NODES: "no GPU health is shown",
        DEVICE_MAINTENANCES: "no maintenance requests are shown",
        MAINTENANCE_BUDGETS: "whether maintenance is paused is not shown",
        MIG_POLICIES: "no MIG policies are shown",
        SHARING_POLICIES: "no sharing policies are shown",
        DEVICE_LIMITS: "limits of namespaces are not shown",
        DEVICE_RESERVATIONS: "reservations are not shown",
    }
)
"""Draco's kinds, each with the consequence if it may not be listed."""


@click.command()
@with_cluster
@click.option("-n", "--namespace", default="", help="List only the claims and reservations of this namespace.")
@output_option("text", "wide", "json", text="wide: every device and claim. json: one document of a stable schema.")
def command(kubeconfig: Path | None, context: str | None, namespace: str, output: str) -> None:
    """Show nodes, GPUs, claims, taints, maintenance, MIG and sharing policies, limits and reservations on one screen.

    Works with the devices of every DRA driver. Reads only, and keeps nothing.
    """
    status = asyncio.run(_read(kubeconfig, context, namespace))
    if output == "json":
        print_document(status)
        return
    show = status_screen.show_wide if output == "wide" else status_screen.show
    print_screen(lambda console: show(visible(status), console))


async def _read(kubeconfig: Path | None, context: str | None, namespace: str) -> ClusterStatus:
    async with cluster_with_dra(kubeconfig, context) as (client, features):
        missing = missing_of(features)
        reader = Reader(client)
        async with asyncio.TaskGroup() as tasks:
            nodes = tasks.create_task(reader.all(NODES))
            slices = tasks.create_task(reader.all(SLICES))
            claims = tasks.create_task(reader.all(CLAIMS))
            pods = tasks.create_task(
                reader.all_if_allowed(
                    PODS, "which pods wait for a claim is not shown", {"fieldSelector": "status.phase=Pending"}
                )
            )
            leases = tasks.create_task(
                reader.all_if_allowed(LEASES, "warnings about the operator are not shown", {"fieldSelector": OPERATORS})
            )
            rules = tasks.create_task(reader.all(features.taint_rules)) if features.taint_rules else None
            scaling = tasks.create_task(autoscalers(client))
            own_tasks = {
                kind: tasks.create_task(reader.all_if_served(kind, consequence)) for kind, consequence in _OWN.items()
            }
        own: dict[Kind[Any], list[Any]] = {kind: task.result() or [] for kind, task in own_tasks.items()}
        if absent := [kind.kind for kind, task in own_tasks.items() if task.result() is None]:
            missing.append(
                MissingView(
                    name=", ".join(absent),
                    consequence="Draco is not installed here, or only in part: what it knows of GPUs is not shown.",
                    remedy="Install it with charts/draco, or apply crds/.",
                )
            )
        written = [rule for rule in (rules.result() if rules else []) if not is_draco_own(rule)]
        tainted = TaintedCluster(devices=(), hardware=HardwareByPool(slices.result()), claims=claims.result())
        users, budgets = await pods_and_budgets(reader, tainted.claims_hit(written))
        by_name = {str(claim.metadata.key): claim for claim in claims.result()}
        members = await group_members(reader, claims_held(own[DEVICE_MAINTENANCES], by_name))
        snapshot = Snapshot(
            nodes=nodes.result(),
            slices=slices.result(),
            claims=claims.result(),
            pods=pods.result(),
            users=users,
            budgets=budgets,
            members=members,
            rules=rules.result() if rules else [],
            spares_extended=spares_extended_resources(features.taint_rules),
            maintenance_budgets=own[MAINTENANCE_BUDGETS],
            gpu_nodes=own[GPU_NODES],
            maintenances=own[DEVICE_MAINTENANCES],
            mig_policies=own[MIG_POLICIES],
            sharing_policies=own[SHARING_POLICIES],
            limits=own[DEVICE_LIMITS],
            reservations=own[DEVICE_RESERVATIONS],
            leaders=leading(leases.result(), datetime.now(UTC)),
            missing=missing,
            autoscalers=scaling.result(),
            unread=sorted(reader.unread),
        )
        return status_of(snapshot, server=str(client.connection.server), namespace=namespace)
