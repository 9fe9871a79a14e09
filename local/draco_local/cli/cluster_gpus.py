"""`draco cluster gpu`: break, hold and partition the GPUs of a local cluster's nodes on purpose.

Owns the options. `cluster_gpus_screen` shows a node; `faults`, `hotplug` and `by_hand` of `draco_local.simulator.accidents`
change its GPUs.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args
from uuid import UUID

import click

from draco.cli.options import output_option
from draco.cli.output import print_document
from draco_local.cli.cluster_gpus_screen import held, lines
from draco_local.cluster import gpus
from draco_local.simulator.accidents import by_hand, faults, hotplug
from draco_local.simulator.gpus import wiring
from draco_local.simulator.gpus.procfs import cgroup_of
from draco_local.simulator.gpus.state import GpuProcess, load

_Command = Callable[..., None]
_HAND_PID = 100_000  # more processes than a usual machine ever runs


def _node(function: _Command) -> _Command:
    """Make a command on a node's GPUs, which gets the path of their state file."""

    @click.argument("node")
    @click.option("--name", default="draco", show_default=True, metavar="NAME", help="Name of the cluster.")
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

    NODE is a node of the cluster, GPU the number or UUID of one of its GPUs. Changes take effect immediately and
    last until undone.
    """


@command.command()
@_node
@output_option("text", "json")
def show(path: Path, output: str) -> None:
    """Show a node's GPUs.

    Also their MIG instances, holders and faults.
    """
    state = load(path)
    if output == "json":
        print_document(state)
        return
    for line in lines(state):
        click.echo(line)


@command.command()
@_node
@_GPU
def lose(path: Path, gpu: int | str) -> None:
    """Let a GPU fall off the bus.

    No reset or reboot brings it back, and after the next reboot it is missing, until `reseat` or `replace`.
    """
    faults.lose(path, gpu)


@command.command()
@_node
@_GPU
def remove(path: Path, gpu: int | str) -> None:
    """Take a GPU out of its node.

    The numbers of the GPUs after it change immediately, their minor numbers when the driver is reloaded.
    """
    hotplug.remove(path, gpu)


@command.command()
@_node
@_GPU
def reseat(path: Path, gpu: int | str) -> None:
    """Take a GPU out and put it back in, healthy.

    Name a missing GPU by its UUID.
    """
    hotplug.reseat(path, gpu)


@command.command()
@_node
@_GPU
def replace(path: Path, gpu: int | str) -> None:
    """Replace a GPU with another board.

    The new one has the same PCI address and another UUID. Name a missing GPU by its UUID.
    """
    click.echo(f"The new GPU is {hotplug.replace(path, gpu)}.")


@command.command()
@_node
def bridge(path: Path) -> None:
    """Connect a node's GPUs in pairs with NVLink bridges: the first two, the next two, and so on.

    Only for boards that take a bridge, such as the A30. The node reboots.
    """
    wiring.bridge_pairs(path)
    faults.reboot(path)


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
@click.option("--corrected", default=0, type=click.IntRange(min=0), metavar="N", help="Number of corrected errors.")
@click.option("--uncorrected", default=0, type=click.IntRange(min=0), metavar="N", help="Number of uncorrected errors.")
@click.option("--threshold", is_flag=True, help="Exceed the SRAM error threshold: the board must be replaced.")
def ecc(path: Path, gpu: int | str, corrected: int, uncorrected: int, threshold: bool) -> None:
    """Count memory errors."""
    if not corrected and not uncorrected and not threshold:
        raise click.UsageError("Say how many: --corrected N, --uncorrected N, --threshold.")
    faults.ecc_errors(path, gpu, corrected=corrected, uncorrected=uncorrected)
    if threshold:
        faults.sram_threshold_exceeded(path, gpu)


@command.command()
@_node
@_GPU
@click.option(
    "--correctable", default=0, type=click.IntRange(min=0), metavar="N", help="Rows with errors that ECC corrected."
)
@click.option(
    "--uncorrectable",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="Rows with errors that it could not correct.",
)
@click.option("--failed", is_flag=True, help="Let one remapping fail: no spare row was left.")
def remap(path: Path, gpu: int | str, correctable: int, uncorrectable: int, failed: bool) -> None:
    """Remap memory rows.

    Sends XID 63, and XID 64 for a remapping that failed. Remapped rows are in use after the next `reset`.
    """
    if not (correctable or uncorrectable or failed):
        raise click.UsageError("Say which: --correctable N, --uncorrectable N, --failed.")
    faults.remap(path, gpu, correctable=correctable, uncorrectable=uncorrectable, failed=failed)


@command.command()
@_node
@_GPU
@click.argument("link", type=click.IntRange(min=0))
@click.option("--down/--up", default=None, help="Take the link down, or up again.")
@click.option("--replay", default=0, type=click.IntRange(min=0), metavar="N", help="Add N replays.")
@click.option("--recovery", default=0, type=click.IntRange(min=0), metavar="N", help="Add N recoveries.")
@click.option("--crc", default=0, type=click.IntRange(min=0), metavar="N", help="Add N CRC errors.")
def nvlink(path: Path, gpu: int | str, link: int, down: bool | None, **errors: int) -> None:
    """Break an NVLink of a GPU.

    LINK is its number. A link that goes down sends XID 74, on NVLink 5 XID 149. A reset brings it up.
    """
    if down is None and not any(errors.values()):
        raise click.UsageError("Say what: --down, --up, or errors by --replay N, --recovery N, --crc N.")
    faults.nvlink(path, gpu, link, down=down, **errors)


@command.command()
@_node
@_GPU
@click.argument("state", type=click.Choice(get_args(faults.FabricState)))
def fabric(path: Path, gpu: int | str, state: faults.FabricState) -> None:
    """Set the state of a GPU in its NVLink fabric.

    `joining` is its state after a boot, until the fabric manager is done. A reset joins it again.
    """
    faults.fabric(path, gpu, state)


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
    """Set the recovery action that NVML reports for a GPU."""
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

    ERROR is a return code like LIB_RM_VERSION_MISMATCH, by default DRIVER_NOT_LOADED. `reload-driver` repairs it.
    """
    faults.break_driver(path, faults.ERRORS[error])


@command.command("reload-driver")
@_node
@click.option(
    "--version", metavar="VERSION", help="The version to load, or a release: 535, 570, 580 or 615.  [default: the same]"
)
def reload_driver(path: Path, version: str | None) -> None:
    """Unload and load a node's driver.

    This ends all instances, all programs that hold GPUs, and every NVML session.
    """
    gpus.reload_driver(path, version=version)


@command.command("nvidia-smi")
@_node
@click.argument("state", type=click.Choice(["missing", "installed"]))
def nvidia_smi(path: Path, state: str) -> None:
    """Take nvidia-smi out of a node's driver, or put it back."""
    gpus.nvidia_smi(path, installed=state == "installed")


@command.command()
@_node
@click.option("--minors", metavar="N,N,...", help="The GPUs' new minor numbers.  [default: as before]")
def reboot(path: Path, minors: str | None) -> None:
    """Do to a node's GPUs what a reboot does.

    Lost GPUs are missing afterwards, and minor numbers close the gaps. The node's programs are not restarted.
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
@click.option("--only-gi", "compute", flag_value="none", help="Create no compute instance in it.")
@click.option("--with-ci", "compute", flag_value="whole", default="whole", hidden=True)
def create(path: Path, gpu: int | str, profile: str, start: int | None, compute: Literal["none", "whole"]) -> None:
    """Create a GPU instance by hand.

    PROFILE is a name like 3g.40gb. To Draco it is a foreign instance.
    """
    made = by_hand.create_instance(path, gpu, profile, start=start, compute=compute)
    click.echo(f"Created GPU instance {made.gpu_instance} at unit {made.start}: {made.uuid or 'no compute instance'}.")


@command.command()
@_node
@_GPU
@click.argument("gi", type=click.IntRange(min=0))
def destroy(path: Path, gpu: int | str, gi: int) -> None:
    """Destroy a GPU instance by hand.

    GI is its id. Its compute instances are destroyed with it, also those that Draco did not create.
    """
    by_hand.destroy_instance(path, gpu, gi)


@command.command()
@_node
@_GPU
@_GI
@_CI
@click.option("--pid", type=click.IntRange(min=1), help="Its process id.  [default: a free one]")
@click.option("--program", default="", metavar="TEXT", help="Name of the program.")
@click.option("--cgroup", default="/", metavar="PATH", help="Its cgroup, which identifies its pod.")
@click.option("--pod-uid", type=click.UUID, metavar="UID", help="That pod, instead of a cgroup.")
@click.option("--pod", "hostname", default="", metavar="NAME", help="That pod's name.")
@click.option("--container", default="", metavar="NAME", help="Its container in that pod.")
@click.option("--memory", "memory_mib", default=0, type=click.IntRange(min=0), metavar="MIB", help="Memory it uses.")
@click.option(
    "--utilization",
    default=0,
    type=click.IntRange(0, 100),
    metavar="PERCENT",
    help="Time in which one of its kernels runs.",
)
@click.option("--handle", "kind", flag_value="handle", help="Only keep a handle: NVML lists no process.")
@click.option("--mps", "kind", flag_value="mps", help="Compute as a client of an MPS server.")
@click.option("--drawing", "kind", flag_value="drawing", help="Draw, and compute nothing.")
@click.option("--computing", "kind", flag_value="computing", default="computing", hidden=True)
def hold(
    path: Path,
    gpu: int | str,
    *,
    gi: int | None,
    ci: int | None,
    pid: int | None,
    program: str,
    cgroup: str,
    pod_uid: UUID | None,
    kind: str,
    **process: Any,
) -> None:
    """Let a program hold and use a GPU or an instance.

    A held GPU cannot be reset, and a held instance cannot be destroyed. Programs of one pod and container are in the same
    container.
    """
    if pod_uid is not None:
        cgroup = cgroup_of(str(pod_uid), process["container"])
    if ci is not None and gi is None:
        raise click.UsageError("--ci names a compute instance of a GPU instance: say which with --gi.")
    if kind != "handle" and gi is not None and ci is None:
        ci = 0  # programs compute on compute instances only
    taken = {each.pid for one in load(path).gpus for each in one.processes}
    chosen = next(number for number in range(_HAND_PID, 2 * _HAND_PID) if number not in taken) if pid is None else pid
    holder = GpuProcess(
        chosen, gpu_instance=gi, compute_instance=ci, name=program, cgroup=cgroup, **_listed(kind), **process
    )
    faults.hold(path, gpu, holder)
    click.echo(f"Process {chosen} holds {held(holder, gpu)}.")


def _listed(kind: str) -> dict[str, Any]:
    return {"listed": False} if kind == "handle" else {"kind": kind}


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
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="How many calls fail.  [default: all]")
@click.option(
    "--afterwards", "effect", flag_value="done", help="Fail after doing the work, as if the answer were lost."
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

    FUNCTION is a name like nvmlGpuInstanceDestroy, or nvidia-smi for its time slices. ERROR is a return code like IN_USE.
    """
    faults.fail(
        path, function, faults.ERRORS[error], gpu=gpu, gpu_instance=gi, compute_instance=ci, times=times, effect=effect
    )


@command.command()
@_node
@click.argument("function")
@click.option("--gpu", callback=_gpu_of, metavar="GPU", help="Only on this GPU.")
def hang(path: Path, function: str, gpu: int | str | None) -> None:
    """Let calls of an NVML function never return.

    FUNCTION is a name like nvmlDeviceGetFieldValues. `stop-failing` lets them go on.
    """
    faults.hang(path, function, gpu=gpu)


@command.command("stop-failing")
@_node
@click.argument("function", default="")
def stop_failing(path: Path, function: str) -> None:
    """End the failures of NVML's FUNCTION, or all, and let hanging calls go on."""
    faults.stop_failing(path, function)


@command.command()
@_node
@click.argument("seconds", type=click.FloatRange(min=0))
@click.option("--function", default="*", metavar="FUNCTION", help="Only this one.  [default: all]")
def latency(path: Path, seconds: float, function: str) -> None:
    """Let NVML take SECONDS longer; 0 ends it."""
    faults.latency(path, seconds, function)
