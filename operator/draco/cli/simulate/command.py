"""`draco simulate`: what would happen, without touching the cluster.

Owns the options, and which part of the command each one starts. `--with-taint` uses the syntax of `kubectl taint`, with devices
after an @: KEY[=VALUE]:EFFECT[@DRIVER/POOL/DEVICE]. `draco.whatif` simulates, `report` words the result, `scenarios` handles
batches, and `mig` is `draco simulate mig`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from draco.cli.input.sources import WorldSources, read_world, with_sources
from draco.cli.options import output_option, verbose_option
from draco.cli.output import answer_lines, echo_lines, print_as
from draco.cli.simulate import mig as simulate_mig
from draco.cli.simulate import report as simulate_report
from draco.cli.simulate import scenarios as simulate_scenarios
from draco.cli.taint.targets import TaintTargetError, taint_of
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.taints import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from draco.resources.names import PoolKey
from draco.whatif import trials as simulate_trials
from draco.whatif import world
from draco.whatif.world import World, WorldError

FORM: Final = "KEY[=VALUE]:EFFECT[@DEVICES]"
_FIELDS: Final = ("driver", "pool", "device")


class TaintOption(click.ParamType[DeviceTaintRule]):
    """Parses a taint into a rule for the devices it names, or for all devices if it names none."""

    name = "taint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DeviceTaintRule:
        """The rule, named after its text."""
        text, at, devices = str(value).partition("@")
        try:
            taint = taint_of(text)
        except TaintTargetError as error:
            self.fail(str(error), param, ctx)
        selector = self._selector(devices, param, ctx) if at else DeviceTaintSelector()
        return DeviceTaintRule(
            metadata=ObjectMeta(name=f"with-taint {value}", uid=f"with-taint {value}"),
            spec=DeviceTaintRuleSpec(taint=taint, device_selector=selector),
        )

    def _selector(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> DeviceTaintSelector:
        if "=" in text:
            fields = dict(part.strip().partition("=")[::2] for part in text.split(","))
            unknown = [name for name in fields if name not in _FIELDS]
            if unknown:
                self.fail(f"'{unknown[0]}' selects no devices; use {', '.join(_FIELDS)}.", param, ctx)
        else:
            driver, _, rest = text.partition("/")
            pool, slash, device = rest.rpartition("/")  # pool names may contain slashes
            if not slash or not all((driver, pool, device)):
                self.fail(
                    f"'{text}' names no devices; write DRIVER/POOL/DEVICE with * for any, or pool=NAME,device=NAME.",
                    param,
                    ctx,
                )
            fields = {"driver": driver, "pool": pool, "device": device}
        return DeviceTaintSelector(**{name: None if value in {"", "*"} else value for name, value in fields.items()})


@click.group(invoke_without_command=True, subcommand_metavar="[mig …]")
@with_sources
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Only on this node. May be given several times.")
@click.option(
    "--copies",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of copies to try: how many more of these fit?",
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
@verbose_option
@output_option("text", "json", "yaml")
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
    sources: WorldSources,
    nodes: Sequence[str],
    copies: int,
    without: Sequence[str],
    taints: Sequence[DeviceTaintRule],
    verbose: bool,
    output: str,
    scenarios: Path | None,
) -> None:
    """Show what would be allocated, without changing the cluster.

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
        answer_lines(scenarios, simulate_scenarios.LONGEST_LINE, simulate_scenarios.answers)
        return
    made, _ = read_world(sources)
    if nodes:
        world.keep_only(made, nodes)
    gone = world.without(made, without)
    world.put_taints(made, taints)
    made.note_unselecting_rules()
    run = simulate_trials.run(made.fleet, _trials(made, gone), copies)
    if output != "text":
        print_as(output, simulate_report.document(run, made.notes))
        return
    echo_lines(simulate_report.lines(run, made.notes, verbose=verbose))


command.add_command(simulate_mig.command)


def _refuse_others(ctx: click.Context, alone: str) -> None:
    if given := [option for option in _given(ctx) if option != f"--{alone}"]:
        raise click.UsageError(f"--{alone} cannot be combined with {given[0]}: each scenario contains everything.")


def _refuse_before(ctx: click.Context, subcommand: str) -> None:
    if given := _given(ctx):
        raise click.UsageError(
            f"{given[0]} is before {subcommand}, which has its own options: write options after {subcommand}."
        )


def _given(ctx: click.Context) -> list[str]:
    return [
        parameter.opts[-1]
        for parameter in ctx.command.params
        if ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    ]


def _trials(made: World, gone: set[PoolKey]) -> list[simulate_trials.Trial]:
    """What the files ask for; if they ask for nothing, what waits in the cluster."""
    if made.wanted:
        trials = simulate_trials.trials_of_files(made)
        nothing = "no claim in the files waits for devices: all are allocated, or no pod uses one"
    elif made.server:
        trials = simulate_trials.trials_of_cluster(made, gone)
        nothing = "no claim in the cluster waits for devices: give one with -f"
    else:
        trials, nothing = [], "the files ask for no devices: add a ResourceClaim, a ResourceClaimTemplate or a Pod"
    if not trials:
        raise WorldError(nothing)
    made.note_first_fit(claim for trial in trials for claim in trial.claims)
    return trials
