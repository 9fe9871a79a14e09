"""`draco taint`: list, preview, add and remove taints of single devices. Writes no rule that Draco's operator owns."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import click
import msgspec

from draco.cli.input.reading import Reader, on_cluster, pods_and_budgets
from draco.cli.options import output_option
from draco.cli.output import CommandError, ask, echo, echo_lines, print_document, visible, warn
from draco.cli.tables import print_table, table
from draco.cli.taint import targets
from draco.kube.connect.client import Client
from draco.kube.discovery import Features
from draco.kube.errors import NotFound
from draco.maintenance.taint_impact import TaintImpact, sentences, spares_extended_resources
from draco.overview.hardware_use import HardwareByPool
from draco.overview.status_schema import RuleView
from draco.overview.taint_rules import TaintedCluster, rule_views, view_of
from draco.resources.api.base import OutputStruct
from draco.resources.api.slices import published_devices
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import CLAIMS, DEVICE_MAINTENANCES, SLICES, Kind
from draco.resources.texts import counted, listed

SCHEMA = "draco.dev/taint-rules/v1"
"""Schema of the JSON document. Fields are only added under one name."""


class RuleList(OutputStruct, frozen=True, kw_only=True):
    """DeviceTaintRules and what they affect. `unread` lists what could not be read."""

    schema: str = SCHEMA
    taint_rules: list[RuleView]
    unread: list[str] = []


class _Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """What was read."""

    client: Client
    kind: Kind[DeviceTaintRule]
    reader: Reader
    rules: list[DeviceTaintRule]
    tainted: TaintedCluster

    async def with_users(self, rules: Sequence[DeviceTaintRule]) -> TaintedCluster:
        """The same, with the pods that these rules affect and the PodDisruptionBudgets that cover them."""
        pods, budgets = await pods_and_budgets(self.reader, self.tainted.claims_hit(rules))
        return msgspec.structs.replace(self.tainted, pods=pods, budgets=budgets)


async def _read(client: Client, features: Features) -> _Cluster:
    """Read what taints can affect. Raises CommandError if the cluster does not serve DeviceTaintRule."""
    if features.taint_rules is None:
        (missing,) = [each for each in features.missing if each.name == "DeviceTaintRule"]
        raise CommandError(
            f"{client.connection.server} does not serve DeviceTaintRule. {missing.consequence} {missing.remedy}"
        )
    reader = Reader(client)
    async with asyncio.TaskGroup() as tasks:
        slices = tasks.create_task(reader.all(SLICES))
        claims = tasks.create_task(reader.all(CLAIMS))
        rules = tasks.create_task(reader.all(features.taint_rules))
    tainted = TaintedCluster(
        devices=published_devices(slices.result()),
        hardware=HardwareByPool(slices.result()),
        claims=claims.result(),
        spares_extended=spares_extended_resources(features.taint_rules),
    )
    return _Cluster(client=client, kind=features.taint_rules, reader=reader, rules=rules.result(), tainted=tainted)


_on_cluster = on_cluster(_read)


@click.group()
def command() -> None:
    """List, preview, add and remove taints of single devices.

    Kubernetes taints what a DeviceTaintRule names: these commands write rules for exactly one device each. Where Draco's operator
    runs, all partitions of a GPU are tainted with it.
    """


@command.command("list")
@_on_cluster
@output_option("text", "json", text="json: one document of a stable schema.")
async def list_(cluster: _Cluster, *, output: str) -> None:
    """List the DeviceTaintRules, and what each affects."""
    requests = await cluster.reader.all_if_served(DEVICE_MAINTENANCES, "which rules are Draco's own is not shown") or []
    views = rule_views(cluster.rules, requests, await cluster.with_users(cluster.rules))
    found = RuleList(taint_rules=views, unread=cluster.reader.unread)
    if output == "json":
        print_document(found)
        return
    warn(found.unread)
    if not found.taint_rules:
        echo("No DeviceTaintRule found.")
        return
    _print_table(found)


@command.command()
@click.argument("what", nargs=-1, required=True, metavar="RULE | DEVICE... KEY[=VALUE]:EFFECT")
@_on_cluster
@output_option("text", "json", text="json: one document of a stable schema.")
async def preview(cluster: _Cluster, *, what: Sequence[str], output: str) -> None:
    """Show what a taint does, or would do: devices, claims, pods, and the disruption budgets that it breaks.

    A DEVICE is POOL/DEVICE, with most drivers NODE/DEVICE. Changes nothing.

    \b
    draco taint preview gpu-node-0/gpu-3 example.com/broken:NoExecute
    draco taint preview my-rule
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    rules = _meant(what, cluster) if len(what) > 1 else targets.rules_named(what, cluster.rules)
    impact, unread = (await cluster.with_users(rules)).impact(rules), cluster.reader.unread
    if output == "json":
        print_document(RuleList(taint_rules=[view_of(rule, impact) for rule in rules[:1]], unread=unread))
        return
    warn(unread)
    _print_impact(rules, impact)


@command.command()
@click.argument("devices", nargs=-1, required=True, metavar="DEVICE...")
@click.argument("taint", metavar="KEY[=VALUE]:EFFECT")
@click.option("--overwrite", is_flag=True, help="Change the value or effect where the device has a rule with this key.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before pods are deleted.")
@_on_cluster
async def add(
    cluster: _Cluster, *, devices: Sequence[str], taint: str, overwrite: bool, dry_run: bool, yes: bool
) -> None:
    """Put a taint on devices: one DeviceTaintRule for each.

    A DEVICE is POOL/DEVICE, with most drivers NODE/DEVICE. Effects: NoSchedule keeps new claims off, NoExecute deletes the pods
    that use the device as well, None only announces.

    \b
    draco taint add gpu-node-0/gpu-3 example.com/broken:NoSchedule
    draco taint add gpu-node-0/gpu-3 gpu-node-0/gpu-4 example.com/broken=fan:None
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    rules = _meant((*devices, taint), cluster)
    there = {rule.metadata.name: rule for rule in cluster.rules}
    for rule in rules:
        targets.check_overwriting(there.get(rule.metadata.name), rule, overwrite=overwrite)
    impact = (await cluster.with_users(rules)).impact(rules)
    warn(cluster.reader.unread)
    _print_impact(rules, impact)
    if rules[0].spec.taint.effect == "NoExecute" and impact.evicted and not (yes or dry_run):
        pods = counted(len(impact.evicted), "pod")
        remedy = "add --yes, or use the effect NoSchedule and wait until they end"
        ask(f"Delete {pods}?", f"this deletes {pods}", remedy)
    for rule in rules:
        echo(f"devicetaintrule/{rule.metadata.name} {await _write(cluster, rule, there, dry_run)}")


@command.command()
@click.argument("what", nargs=-1, required=True, metavar="RULE... | DEVICE... KEY[:EFFECT]")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@_on_cluster
async def remove(cluster: _Cluster, *, what: Sequence[str], dry_run: bool) -> None:
    """Take taints off devices: delete DeviceTaintRules, by name or by device and key.

    \b
    draco taint remove gpu-node-0/gpu-3 example.com/broken
    draco taint remove my-rule
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    if any("/" in each for each in what):  # rule names have no slash
        if len(what) == 1:
            raise click.UsageError("Name the taint to remove after its devices, as KEY or KEY:EFFECT.")
        *named, key = what
        found = [targets.device_of(text, cluster.tainted.devices) for text in named]
        rules = [rule for device in found for rule in targets.rules_to_remove(device, key, cluster.rules)]
    else:
        rules = targets.rules_named(what, cluster.rules)
    requests = await cluster.reader.all_if_served(DEVICE_MAINTENANCES, "which rules are Draco's own is not known") or []
    names = [(request.metadata.uid, request.metadata.name) for request in requests]
    for rule in rules:
        if said := targets.kept_by(rule, cluster.rules, names):
            raise targets.TaintTargetError(said)
    for rule in rules:
        if not dry_run:
            with suppress(NotFound):  # deleted by another client
                await cluster.client.delete(cluster.kind, rule.metadata.key, uid=rule.metadata.uid)
        echo(f"devicetaintrule/{rule.metadata.name} deleted{' (dry run)' if dry_run else ''}")


def _meant(what: Sequence[str], cluster: _Cluster) -> list[DeviceTaintRule]:
    """The rules that put the last word's taint on the devices before it."""
    *devices, text = what
    taint = targets.taint_of(text)
    found = [targets.device_of(device, cluster.tainted.devices) for device in dict.fromkeys(devices)]
    return [targets.rule_on(device, taint) for device in dict.fromkeys(found)]


async def _write(cluster: _Cluster, rule: DeviceTaintRule, there: Mapping[str, DeviceTaintRule], dry_run: bool) -> str:
    """Create the rule or change its taint. Returns kubectl's word for what was done."""
    before = there.get(rule.metadata.name)
    if before and before.spec.taint.identity == rule.spec.taint.identity:
        return "unchanged"
    said = "configured" if before else "created"
    if dry_run:
        return f"{said} (dry run)"
    if before is None:
        await cluster.client.create(cluster.kind, rule)
    else:
        taint = {"value": None, **msgspec.to_builtins(rule.spec.taint)}
        patch = {"metadata": {"uid": before.metadata.uid}, "spec": {"taint": taint}}
        await cluster.client.patch(cluster.kind, rule.metadata.key, patch)
    return said


def _print_impact(rules: Sequence[DeviceTaintRule], impact: TaintImpact) -> None:
    echo(f"Taint {rules[0].spec.taint.identity} on {listed(map(targets.target_text, rules))}")
    echo_lines(sentences(rules[0], impact))


def _print_table(found: RuleList) -> None:
    rows = table("NAME", "TAINT", "SELECTS", "DEVICES", "CLAIMS", "PODS", "FOR")
    for view in visible(found).taint_rules:
        numbers = map(str, map(len, (view.devices, view.claims, view.pods)))
        rows.add_row(view.name, view.taint, view.selector, *numbers, view.maintenance or view.extends or "-")
    print_table(rows)
