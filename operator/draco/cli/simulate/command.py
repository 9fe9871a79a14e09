"""`draco simulate`: what would happen, without touching the cluster.

Owns the options, and what of the command each of them starts. Scenarios are `scenarios`; `world` is what is imagined,
`trials` what is tried in it, `report` what is said of it. `draco simulate mig` is `mig`.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from draco.cli.input import world
from draco.cli.input.sources import Sources, read_world, with_sources
from draco.cli.input.world import World, WorldError
from draco.cli.output import json_lines
from draco.cli.output.documents import print_document, print_yaml
from draco.cli.output.showing import echo
from draco.cli.simulate import (
    mig as simulate_mig,
)
from draco.cli.simulate import (
    report as simulate_report,
)
from draco.cli.simulate import (
    scenarios as simulate_scenarios,
)
from draco.cli.simulate import (
    trials as simulate_trials,
)
from draco.cli.simulate.taints import FORM, TaintOption
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.names import PoolKey


@click.group(invoke_without_command=True, subcommand_metavar="[mig …]")
@with_sources
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Only on this node. May be given several times.")
@click.option(
    "--copies",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Try it so often: how many more of these fit?",
)
@click.option("--without-node", "without", multiple=True, metavar="NODE", help="As if this node were gone. Repeatable.")
@click.option(
    "--with-taint",
    "taints",
    multiple=True,
    type=TaintOption(),
    metavar=FORM,
    help="As if these devices were tainted: DRIVER/POOL/DEVICE with * for any, or pool=NAME,device=NAME; all devices if none "
    "are named. Repeatable.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@click.option(
    "--scenarios",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True, exists=True),
    metavar="FILE",
    help='JSON lines, each {"name", "objects": […], "node", "claims": ["namespace/name"]}, answered one by one; - reads '
    "standard input.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    sources: Sources,
    nodes: Sequence[str],
    copies: int,
    without: Sequence[str],
    taints: Sequence[DeviceTaintRule],
    output: str,
    scenarios: Path | None,
) -> None:
    """Say what would be allocated, without touching the cluster.

    Files may hold Nodes, ResourceSlices, DeviceClasses, DeviceTaintRules, ResourceClaims, ResourceClaimTemplates, Pods and
    workloads. Claims that are allocated count as in use. Others are tried one after another, those of a pod together; a template
    stands for one claim. Without files, what waits in the cluster is tried. The status is 0 whether all fits or not: -o json
    says so in "fits".

    \b
    draco simulate -f pod.yaml --copies 100        how many more of these fit?
    draco simulate --without-node gpu-node-3       where would its claims go?
    draco simulate -f claim.yaml --with-taint suspect:NoSchedule@gpu.nvidia.com/gpu-node-1/*
    """  # noqa: D301 - click keeps the lines below a backspace as they are
    if ctx.invoked_subcommand is not None:
        _refuse_before(ctx, ctx.invoked_subcommand)
        return
    if scenarios is not None:
        _refuse_others(ctx, "scenarios")
        json_lines.answer(scenarios, simulate_scenarios.LONGEST_LINE, simulate_scenarios.answers)
        return
    made, _ = read_world(sources)
    if nodes:
        world.keep_only(made, nodes)
    gone = world.without(made, without)
    world.put_taints(made, taints)
    run = simulate_trials.run(made.fleet, _trials(made, gone), copies)
    _print(run, made.notes, output)


command.add_command(simulate_mig.command)


def _refuse_others(ctx: click.Context, alone: str) -> None:
    if given := [option for option in _given(ctx) if option != f"--{alone}"]:
        raise click.UsageError(f"--{alone} takes no {given[0]}: each scenario says everything itself.")


def _refuse_before(ctx: click.Context, subcommand: str) -> None:
    if given := _given(ctx):
        raise click.UsageError(
            f"{given[0]} stands before {subcommand}, which has options of its own: write them after it."
        )


def _given(ctx: click.Context) -> list[str]:
    """The options on the command line."""
    return [
        parameter.opts[-1]
        for parameter in ctx.command.params
        if ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    ]


def _trials(made: World, gone: set[PoolKey]) -> list[simulate_trials.Trial]:
    """What the files ask for; what the cluster has to place if they ask for nothing."""
    if made.wanted:
        trials = simulate_trials.trials_of_files(made)
        nothing = "no claim in the files waits for devices: all are allocated, or pods use none"
    elif made.server:
        trials = simulate_trials.trials_of_cluster(made, gone)
        nothing = "no claim in the cluster waits for devices: give one with -f"
    else:
        trials, nothing = [], "the files ask for no devices: add a ResourceClaim, a ResourceClaimTemplate or a Pod"
    if not trials:
        raise WorldError(nothing)
    return trials


def _print(run: simulate_trials.Run, notes: Sequence[str], output: str) -> None:
    match output:
        case "json":
            print_document(simulate_report.document(run, notes))
        case "yaml":
            print_yaml(simulate_report.document(run, notes))
        case _:
            for line in simulate_report.lines(run, notes):
                echo(line)
