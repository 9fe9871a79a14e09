"""`draco cluster gpu`: break, hold and partition the GPUs of a local cluster's nodes on purpose.

Owns the options and what is printed. What each command does to a GPU is in `draco.simulator.faults` and `by_hand`.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import click

from draco.cli.documents import print_document
from draco.cluster import gpus
from draco.simulator import by_hand, faults
from draco.simulator.boards import BOARDS
from draco.simulator.state import Failure, GpuInstance, GpuState, NodeState, Process, load

_Command = Callable[..., None]
_HAND_PID = 100_000  # so many processes a usual kernel never has at once


def _node(function: _Command) -> _Command:
    """A command on a node's GPUs: it is given the file with their state."""

    @click.argument("node")
    @click.option("--name", default="draco", show_default=True, metavar="NAME", help="Which cluster.")
    @functools.wraps(function)
    def on_node(node: str, name: str, **options: Any) -> None:
        function(gpus.state_file(name, node), **options)

    return on_node


def _gpu_of(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | str | None:
    return int(value) if value is not None and value.isdecimal() else value


_GPU = click.argument("gpu", callback=_gpu_of)
_GI = click.option("--gi", type=click.IntRange(min=0), metavar="ID", help="Only this GPU instance.")
_CI = click.option("--ci", type=click.IntRange(min=0), metavar="ID", help="Only this compute instance of it.")


@click.group("gpu")
def command() -> None:
    """Break, hold and partition simulated GPUs, to see what Draco does.

    NODE is one of the cluster's nodes, GPU the number or the UUID of one of its GPUs. Everything takes effect at once, and stays
    until it is undone.
    """


@command.command()
@_node
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form.")
def show(path: Path, output: str) -> None:
    """Show a node's GPUs.

    With their MIG instances, who holds them, and what is wrong with them.
    """
    state = load(path)
    if output == "json":
        print_document(state)
        return
    for line in _lines(state):
        click.echo(line)


@command.command()
@_node
@_GPU
def lose(path: Path, gpu: int | str) -> None:
    """Let a GPU fall off the bus.

    Only a reboot of its node brings it back.
    """
    faults.lose(path, gpu)


@command.command()
@_node
@_GPU
def unreadable(path: Path, gpu: int | str) -> None:
    """Let NVML answer UNKNOWN about a GPU."""
    faults.make_unreadable(path, gpu)


@command.command()
@_node
@_GPU
def heal(path: Path, gpu: int | str) -> None:
    """End every fault of a GPU."""
    faults.heal(path, gpu)


@command.command()
@_node
@_GPU
@click.argument("code", type=click.IntRange(min=1))
@_GI
@_CI
def xid(path: Path, gpu: int | str, code: int, gi: int | None, ci: int | None) -> None:
    """Send the XID event CODE."""
    whole = faults.WHOLE_GPU
    faults.xid(path, gpu, code, gi=whole if gi is None else gi, ci=whole if ci is None else ci)


@command.command()
@_node
@_GPU
@click.option("--corrected", default=0, type=click.IntRange(min=0), metavar="N", help="So many were corrected.")
@click.option("--uncorrected", default=0, type=click.IntRange(min=0), metavar="N", help="So many were not.")
def ecc(path: Path, gpu: int | str, corrected: int, uncorrected: int) -> None:
    """Count memory errors."""
    if not corrected and not uncorrected:
        raise click.UsageError("Say how many: --corrected N, --uncorrected N, or both.")
    faults.ecc_errors(path, gpu, corrected=corrected, uncorrected=uncorrected)


@command.command()
@_node
@_GPU
@click.argument("celsius", type=int)
def temperature(path: Path, gpu: int | str, celsius: int) -> None:
    """Set a GPU's temperature."""
    faults.temperature(path, gpu, celsius)


@command.command()
@_node
@_GPU
@click.argument("action", type=click.Choice(list(faults.RECOVERY_ACTIONS)))
def recovery(path: Path, gpu: int | str, action: str) -> None:
    """Let NVML say what a GPU needs to work again."""
    faults.recovery_action(path, gpu, faults.RECOVERY_ACTIONS[action])


@command.command()
@_node
@_GPU
def reset(path: Path, gpu: int | str) -> None:
    """Reset a GPU.

    Its instances are gone, and a pending MIG mode takes effect.
    """
    faults.reset(path, gpu)


@command.command("break-driver")
@_node
@click.argument(
    "error",
    type=click.Choice(sorted(faults.ERRORS), case_sensitive=False),
    metavar="[ERROR]",
    default="DRIVER_NOT_LOADED",
)
def break_driver(path: Path, error: str) -> None:
    """Let NVML answer ERROR to everything.

    ERROR is a return code like LIB_RM_VERSION_MISMATCH; DRIVER_NOT_LOADED unless told otherwise. `reload-driver` repairs it.
    """
    faults.break_driver(path, faults.ERRORS[error])


@command.command("reload-driver")
@_node
@click.option("--version", metavar="VERSION", help="The version to load.  [default: the same]")
def reload_driver(path: Path, version: str | None) -> None:
    """Unload and load a node's driver.

    All instances and the programs that held GPUs are gone, and every NVML session is over.
    """
    faults.reload_driver(path, version=version)


@command.command()
@_node
@click.option("--minors", metavar="N,N,...", help="The GPUs' new minor numbers.  [default: as before]")
def reboot(path: Path, minors: str | None) -> None:
    """Do what a reboot does to GPUs.

    The node's programs are not restarted.
    """
    if minors is None:
        faults.reboot(path)
        return
    try:
        numbers = [int(each) for each in minors.split(",")]
    except ValueError:
        raise click.BadParameter(f"{minors!r} is not a list like 1,0,2.", param_hint="--minors") from None
    faults.reboot(path, minors=numbers)


@command.command()
@_node
@_GPU
@click.argument("mode", type=click.Choice(["on", "off"]))
def mig(path: Path, gpu: int | str, mode: str) -> None:
    """Switch MIG mode by hand."""
    click.echo(f"MIG mode is {by_hand.set_mode(path, gpu, int(mode == 'on'))}.")


@command.command()
@_node
@_GPU
@click.argument("profile")
@click.option(
    "--start", type=click.IntRange(min=0), metavar="UNIT", help="First memory unit.  [default: driver's choice]"
)
@click.option("--only-gi", "compute", flag_value="none", help="Leave it without a compute instance.")
@click.option("--with-ci", "compute", flag_value="whole", default="whole", hidden=True)
def create(path: Path, gpu: int | str, profile: str, start: int | None, compute: Literal["none", "whole"]) -> None:
    """Make a GPU instance by hand.

    PROFILE is a name like 3g.40gb. Draco knows nothing of the instance.
    """
    made = by_hand.create_instance(path, gpu, profile, start=start, compute=compute)
    click.echo(f"Made GPU instance {made.gpu_instance} at unit {made.start}: {made.uuid or 'no compute instance'}.")


@command.command()
@_node
@_GPU
@click.argument("gi", type=click.IntRange(min=0))
def destroy(path: Path, gpu: int | str, gi: int) -> None:
    """Destroy a GPU instance by hand.

    GI is its id. Its compute instances are destroyed with it, whoever made it.
    """
    by_hand.destroy_instance(path, gpu, gi)


@command.command()
@_node
@_GPU
@_GI
@_CI
@click.option("--pid", type=click.IntRange(min=1), help="Its process id.  [default: a free one]")
@click.option("--program", default="", metavar="TEXT", help="What the program is called.")
@click.option("--cgroup", default="/", metavar="PATH", help="Its cgroup, which says in which pod it runs.")
@click.option("--pod", "hostname", default="", metavar="NAME", help="That pod's name.")
@click.option("--memory", "memory_mib", default=0, type=click.IntRange(min=0), metavar="MIB", help="Memory it uses.")
@click.option("--handle", "kind", flag_value="handle", help="It only keeps a handle: NVML lists no process.")
@click.option("--computing", "kind", flag_value="computing", default="computing", hidden=True)
def hold(
    path: Path,
    gpu: int | str,
    *,
    gi: int | None,
    ci: int | None,
    pid: int | None,
    program: str,
    kind: str,
    **process: Any,
) -> None:
    """Let a program hold a GPU or an instance.

    A GPU that is held cannot be reset, and an instance that is held cannot be destroyed.
    """
    if ci is not None and gi is None:
        raise click.UsageError("--ci names a compute instance of a GPU instance: say which with --gi.")
    if kind == "computing" and gi is not None and ci is None:
        ci = 0  # programs compute on compute instances only
    taken = {each.pid for one in load(path).gpus for each in one.processes}
    chosen = next(number for number in range(_HAND_PID, 2 * _HAND_PID) if number not in taken) if pid is None else pid
    holder = Process(chosen, gpu_instance=gi, compute_instance=ci, listed=kind == "computing", name=program, **process)
    faults.hold(path, gpu, holder)
    click.echo(f"Process {chosen} holds {_held(holder, gpu)}.")


@command.command()
@_node
@click.argument("pid", type=click.IntRange(min=1))
def release(path: Path, pid: int) -> None:
    """End the process PID."""
    faults.release(path, pid)


@command.command()
@_node
@click.argument("function")
@click.argument("error", type=click.Choice(sorted(faults.ERRORS), case_sensitive=False), metavar="ERROR")
@click.option("--gpu", callback=_gpu_of, metavar="GPU", help="Only on this GPU.")
@_GI
@_CI
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="So often.  [default: always]")
@click.option(
    "--afterwards", "effect", flag_value="done", help="Fail when the work is done, as if the answer were lost."
)
@click.option("--instead", "effect", flag_value="none", default="none", hidden=True)
def fail(
    path: Path,
    function: str,
    error: str,
    *,
    gpu: int | str | None,
    gi: int | None,
    ci: int | None,
    times: int | None,
    effect: Literal["none", "done"],
) -> None:
    """Let calls of an NVML function fail.

    FUNCTION is a name like nvmlGpuInstanceDestroy, ERROR a return code like IN_USE.
    """
    faults.fail(
        path, function, faults.ERRORS[error], gpu=gpu, gpu_instance=gi, compute_instance=ci, times=times, effect=effect
    )


@command.command("stop-failing")
@_node
@click.argument("function", default="")
def stop_failing(path: Path, function: str) -> None:
    """End failures of NVML's FUNCTION, or all."""
    faults.stop_failing(path, function)


@command.command()
@_node
@click.argument("seconds", type=click.FloatRange(min=0))
@click.option("--function", default="*", metavar="FUNCTION", help="Only this one.  [default: all]")
def latency(path: Path, seconds: float, function: str) -> None:
    """Let NVML take SECONDS longer; 0 ends it."""
    faults.latency(path, seconds, function)


def _lines(state: NodeState) -> Iterator[str]:
    yield f"Node {state.node_name}, driver {state.driver.version}, boot {state.boot}"
    codes = {code: name for name, code in faults.ERRORS.items()}
    if state.driver.error:
        yield f"  the driver answers {codes[state.driver.error]}"
    for index, gpu in enumerate(state.gpus):
        yield f"GPU {index}  {gpu.uuid}  {gpu.board}  {_mode(gpu)}"
        if gpu.error:
            yield f"  everything answers {codes[gpu.error]}"
        for action in (name for name, code in faults.RECOVERY_ACTIONS.items() if code and code == gpu.recovery_action):
            yield f"  needs {action}"
        for instance in sorted(gpu.instances, key=lambda each: each.start):
            yield f"  {_instance(gpu, instance)}"
        for process in gpu.processes:
            name = f" ({process.name})" if process.name else ""
            listed = "" if process.listed else ", listed nowhere"
            yield f"  process {process.pid}{name} holds {_held(process, index)}{listed}"
    for failure in state.failures:
        yield _failure(failure, codes)
    for function, seconds in state.latency_s.items():
        yield f"{'Every function' if function == '*' else function} takes {seconds:g} s longer"


def _mode(gpu: GpuState) -> str:
    if not BOARDS[gpu.board].mig_capable:
        return "no MIG"
    now = "on" if gpu.mig_current else "off"
    return f"MIG {now}" if gpu.mig_current == gpu.mig_pending else f"MIG {now}, changes with a reset"


def _instance(gpu: GpuState, instance: GpuInstance) -> str:
    table = BOARDS[gpu.board].mig
    profile = None if table is None else table.by_id(instance.profile_id)
    name = f"profile {instance.profile_id}" if profile is None else profile.name
    last = instance.start + instance.size - 1
    units = f"unit {last}" if instance.size == 1 else f"units {instance.start}-{last}"
    inside = ", ".join(f"CI {each.id} {each.uuid}" for each in instance.compute) or "no compute instance"
    return f"GI {instance.id}  {name}  {units}  {inside}"


def _held(process: Process, gpu: int | str) -> str:
    if process.gpu_instance is None:
        return f"GPU {gpu}"
    part = "" if process.compute_instance is None else f"compute instance {process.compute_instance} of "
    return f"{part}GPU instance {process.gpu_instance} of GPU {gpu}"


def _failure(failure: Failure, codes: dict[int, str]) -> str:
    where = f" on {failure.gpu_uuid}" if failure.gpu_uuid else ""
    if failure.gpu_instance is not None:
        where += f", GPU instance {failure.gpu_instance}"
    if failure.compute_instance is not None:
        where += f", compute instance {failure.compute_instance}"
    how = {"none": "fails", "done": "works and fails"}[failure.effect]
    often = "always" if failure.times is None else f"{failure.times} times"
    return f"{failure.function or 'Every function'} {how} with {codes[failure.error]}{where}, {often}"
