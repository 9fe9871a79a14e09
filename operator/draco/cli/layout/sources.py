"""Reads what `draco layout` shows: GpuNodes and related objects, from a live cluster or from files."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import click

from draco.cli.input.manifests import Manifest, Sources, decode_all, files_option, read_or_ask
from draco.cli.input.mig_policy_checks import refusal
from draco.cli.input.reading import Reader, without_kinds
from draco.cli.options import CLUSTER_OPTIONS, cluster_option, gathered
from draco.cli.output import CommandError
from draco.kube.connect.client import Client
from draco.kube.connect.kubeconfig import connect
from draco.kube.errors import NotFound
from draco.overview.layouts import ObservedNodes
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.draco import GpuNode, MigPolicy
from draco.resources.api.slices import ResourceSlice
from draco.resources.kinds import CLAIMS, GPU_NODES, MIG_POLICIES, NODES, SLICES
from draco.resources.texts import are, listed
from draco.resources.written.manifests import ManifestError, decode_own, note_place

_NAMED: Final = 8


with_layout_sources = gathered(Sources, (files_option, cluster_option("GpuNodes"), *CLUSTER_OPTIONS))
"""Adds the options to a command, which gets them as the argument `sources`."""


def observe(sources: Sources, deleted: Sequence[str] = ()) -> ObservedNodes:
    """Everything a layout depends on. `deleted` names policies to plan without.

    Raises ManifestError, KubeError, KubeconfigError or CommandError.
    """
    manifests, alone = read_or_ask(sources.filenames, cluster=sources.cluster, enough=GPU_NODES.kind)
    seen = ObservedNodes() if alone else asyncio.run(_read(sources.kubeconfig, sources.context))
    seen.deleted = list(dict.fromkeys(deleted))
    _add(seen, manifests)
    _check_deleted(seen)
    return seen


def _check_deleted(seen: ObservedNodes) -> None:
    for name in seen.deleted:
        if name not in seen.policies:
            raise CommandError(f"there is no MigPolicy {name} in {seen.place}: {_those(sorted(seen.policies))}.")
        if any(each.metadata.name == name for each in seen.asked):
            raise click.UsageError(
                f"MigPolicy {name} cannot be both deleted and applied: leave out --delete {name} or its file."
            )


def _those(names: Sequence[str]) -> str:
    if not names:
        return "there is none"
    return f"there {are(len(names))} {listed(names, _NAMED)}"


async def _read(kubeconfig: Path | None, context: str | None) -> ObservedNodes:
    async with Client(await connect(kubeconfig, context)) as client:
        reader = Reader(client)
        try:
            gpu_nodes = await reader.all(GPU_NODES)
            policies = await reader.all(MIG_POLICIES)
        except NotFound:
            raise without_kinds(client, GPU_NODES, MIG_POLICIES) from None
        async with asyncio.TaskGroup() as tasks:
            nodes = tasks.create_task(reader.all_if_allowed(NODES, "node selectors cannot be evaluated"))
            slices = tasks.create_task(reader.all_if_allowed(SLICES, "device selectors cannot be evaluated"))
            claims = tasks.create_task(reader.all_if_allowed(CLAIMS, "which claims have whole GPUs is not known"))
        return ObservedNodes(
            server=str(client.connection.server),
            gpu_nodes={each.metadata.name: each for each in gpu_nodes},
            nodes={each.metadata.name: each for each in nodes.result()},
            slices=slices.result(),
            claims=claims.result(),
            policies={each.metadata.name: each for each in policies},
            notes=sorted(reader.unread),
        )


def _add(seen: ObservedNodes, manifests: Iterable[tuple[Manifest, str]]) -> None:
    others = []
    policies: list[MigPolicy] = []
    dumped: dict[str, str] = {}
    given: dict[str, str] = {}
    for manifest, source in manifests:
        item = decode_own(manifest, source=source)
        if item is None:
            others.append((manifest, source))
            continue
        exists = isinstance(item, MigPolicy) and not seen.server and _exists(item)
        note_place(dumped if exists else given, item, source)
        if isinstance(item, GpuNode):
            seen.gpu_nodes[item.metadata.name] = item
        else:
            if problem := refusal(item, manifest):
                raise ManifestError(f"{source}: MigPolicy {item.metadata.name}: {problem}.")
            policies.append(item)
    _take_policies(seen, policies)
    for other, _ in decode_all(others, "default"):
        if isinstance(other, Node):
            seen.nodes[other.metadata.name] = other
        elif isinstance(other, ResourceSlice):
            seen.slices = [each for each in seen.slices if each.metadata.name != other.metadata.name] + [other]
        elif isinstance(other, ResourceClaim):
            seen.claims = [each for each in seen.claims if each.metadata.key != other.metadata.key] + [other]


def _exists(item: MigPolicy) -> bool:
    """Whether the policy was dumped from a cluster."""
    return bool(item.metadata.uid)


def _take_policies(seen: ObservedNodes, policies: Sequence[MigPolicy]) -> None:
    """Sort policies into existing ones and ones to apply.

    Without a cluster, existing policies are those dumped from one and those to be deleted; the others are to be applied.
    """
    dumped = {each.metadata.name for each in policies if _exists(each)}
    gone = {name for name in seen.deleted if name not in dumped}
    existing = [] if seen.server else [each for each in policies if _exists(each) or each.metadata.name in gone]
    if len(existing) == len(policies) and not seen.deleted:
        existing = []  # all come from a cluster: plan for these
    seen.policies |= {each.metadata.name: each for each in existing}
    seen.asked += [each for each in policies if each not in existing]
