"""`draco cluster gpu show`: a node's simulated GPUs as lines of text.

Owns the words. Changes nothing.
"""

from collections.abc import Iterator

from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus.boards import BOARDS
from draco_local.simulator.gpus.state import Failure, GpuInstance, GpuProcess, GpuState, SimulatedNodeState
from draco_local.simulator.nvml.nvidia_smi import MODES
from draco_local.simulator.nvml.sharing import TIME_SLICES


def lines(state: SimulatedNodeState) -> Iterator[str]:
    """A node's GPUs, and what is wrong with them."""
    yield f"Node {state.node_name}, driver {state.driver.version}, boot {state.boot}"
    codes = {code: name for name, code in faults.ERRORS.items()}
    if state.driver.error:
        yield f"  the driver answers {codes[state.driver.error]}"
    if not state.driver.nvidia_smi:
        yield "  nvidia-smi is missing"
    for index, gpu in enumerate(state.gpus):
        yield f"GPU {index}  {gpu.uuid}  {gpu.board}  {_mode(gpu)}"
        if gpu.error:
            yield f"  every call answers {codes[gpu.error]}"
        for action in (name for name, code in faults.RECOVERY_ACTIONS.items() if code and code == gpu.recovery_action):
            yield f"  needs {action}"
        yield from _sharing(gpu)
        yield from _memory_and_links(gpu)
        for instance in sorted(gpu.instances, key=lambda each: each.start):
            yield f"  {_instance(gpu, instance)}"
        for process in gpu.processes:
            name = f" ({process.name})" if process.name else ""
            listed = "" if process.listed else ", not listed by NVML"
            yield f"  process {process.pid}{name} holds {held(process, index)}{listed}{_uses(process)}"
    for gpu in state.missing:
        why = "fallen off the bus" if gpu.error == faults.ERRORS["GPU_IS_LOST"] else "taken out"
        yield f"Missing: {gpu.uuid}  {gpu.board}  at {gpu.bus_id}, {why}"
    for failure in state.failures:
        yield _failure(failure, codes)
    for function, seconds in state.latency_s.items():
        yield f"{'Every function' if function == '*' else function} takes {seconds:g} s longer"


def _uses(process: GpuProcess) -> str:
    used = [f"{process.memory_mib} MiB"] if process.memory_mib else []
    used += [f"{process.utilization} % of its time"] if process.utilization else []
    return f", uses {' and '.join(used)}" if used else ""


def _sharing(gpu: GpuState) -> Iterator[str]:
    if gpu.compute_mode:
        yield f"  compute mode {MODES[gpu.compute_mode]}"
    if gpu.time_slice:
        yield f"  time slice {TIME_SLICES[gpu.time_slice]}"


def _memory_and_links(gpu: GpuState) -> Iterator[str]:
    rows = gpu.remapped.correctable + gpu.remapped.uncorrectable
    if rows:
        yield f"  {rows} memory row{'s' * (rows > 1)} remapped{', in use after a reset' * gpu.remapped.pending}"
    if gpu.remapped.failed:
        yield "  a memory row could not be remapped"
    for number, link in sorted(gpu.links.items()):
        counts = {"replays": link.replay, "recoveries": link.recovery, "CRC errors": link.crc}
        said = [f"{count} {name}" for name, count in counts.items() if count]
        if link.down or said:
            yield f"  NVLink {number}: {', '.join(['down'] * link.down + said)}"


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


def held(process: GpuProcess, gpu: int | str) -> str:
    """What a process holds."""
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
    if failure.effect == "hang":
        return f"{failure.function or 'Every function'} hangs{where}"
    how = {"none": "fails", "done": "does its work and fails"}[failure.effect]
    often = "always" if failure.times is None else f"{failure.times} times"
    return f"{failure.function or 'Every function'} {how} with {codes[failure.error]}{where}, {often}"
