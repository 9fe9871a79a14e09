"""The part of a simulated node's /proc that tells of GPUs: a folder beside its state file, updated with it.

Owns the tree: the boot id, the loaded driver's version and capability files, by which a container is given a GPU instance or
a compute instance, and the open device files of processes that hold GPUs. Shapes and numbers are those of Linux and of NVIDIA's
driver. There is no list of devices: the kernel below has none of these, so nobody can make their nodes.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path

import pynvml

from draco.agent.mig.holders import place_of
from draco_local.simulator.gpus.gpu_state import GpuProcess, GpuState, SimulatedNodeState

_VERSION = Path("driver/nvidia/version")
_CONFIG, _MONITOR = 1, 2
FIRST = 3  # minor number of the first GPU's instance 0
_INSTANCES, _COMPUTE = 15, 8  # how many the driver reserves numbers for, per GPU and per GPU instance


def tree(state_file: Path) -> Path:
    """Return where a state file's /proc is, once it is built."""
    return state_file.with_name(state_file.name + ".proc")


def build(state_file: Path, state: SimulatedNodeState) -> Path:
    """Make the tree; from now on every change of the state file changes it too. Making it again changes nothing."""
    root = tree(state_file)
    (root / "driver" / "nvidia" / "capabilities").mkdir(parents=True, exist_ok=True)
    refresh(state_file, state)
    return root


def refresh(state_file: Path, state: SimulatedNodeState) -> None:
    """Bring the tree up to date, if there is one."""
    root = tree(state_file)
    if not root.exists():
        return
    wanted = dict(_entries(state))
    folders = {parent for entry in wanted for parent in entry.parents}
    for found in [*(root / "driver" / "nvidia" / "capabilities").rglob("*"), *root.glob("[0-9]*")]:
        # Parents come first, so most of what has to go goes with them.
        relative = found.relative_to(root)
        if found.is_dir() and relative not in folders:
            shutil.rmtree(found)
    if _VERSION not in wanted:
        (root / _VERSION).unlink(missing_ok=True)
    for link in root.glob("[0-9]*/fd/*"):
        if link.relative_to(root) not in wanted:
            link.unlink()
    for entry, content in wanted.items():
        file = root / entry
        file.parent.mkdir(parents=True, exist_ok=True)
        if entry.parent.name == "fd":
            if not file.is_symlink() or os.readlink(file) != content:  # noqa: PTH115 - the target, not what it leads to
                file.unlink(missing_ok=True)
                file.symlink_to(content)
        elif not file.exists() or file.read_text() != content:
            file.write_text(content)


def capability(minor: int, gpu_instance: int, compute_instance: int | None = None, *, first: int = FIRST) -> int:
    """Minor number of /dev/nvidia-caps/nvidia-cap<N> for an instance: it depends only on the ids, made or not.

    `first` is that of the first GPU's instance 0.
    """
    whole = first + (minor * _INSTANCES + gpu_instance) * (_COMPUTE + 1)
    return whole if compute_instance is None else whole + 1 + compute_instance


def capability_nodes(gpus: int) -> list[str]:
    """Return the device nodes below /dev of every instance that `gpus` GPUs with minor numbers from 0 could have."""
    return [f"nvidia-caps/nvidia-cap{number}" for number in range(_CONFIG, capability(gpus, 0))]


def _entries(state: SimulatedNodeState) -> Iterator[tuple[Path, str]]:
    """Every file of the tree with its content; of those in an fd folder, what they link to."""
    yield Path("sys/kernel/random/boot_id"), f"{state.boot_id}\n"
    if state.driver.error != pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        yield (
            _VERSION,
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {state.driver.version}  Release Build\n",
        )
    yield (
        Path("driver/nvidia-caps/mig-minors"),
        _minors(tuple(sorted(gpu.minor for gpu in state.gpus)), state.first_capability),
    )
    capabilities = Path("driver/nvidia/capabilities")
    numbered = partial(capability, first=state.first_capability)
    yield capabilities / "mig/config", _access(_CONFIG, mode=0o400)
    yield capabilities / "mig/monitor", _access(_MONITOR)
    for gpu in state.gpus:
        for instance in gpu.instances:
            folder = capabilities / f"gpu{gpu.minor}" / "mig" / f"gi{instance.id}"
            yield folder / "access", _access(numbered(gpu.minor, instance.id))
            for compute in instance.compute:
                yield folder / f"ci{compute.id}" / "access", _access(numbered(gpu.minor, instance.id, compute.id))
    for pid, held in _by_pid(state).items():
        process = held[0][1]
        yield Path(str(pid), "comm"), f"{process.name[:15] or 'python3'}\n"
        yield Path(str(pid), "cgroup"), f"0::{process.cgroup}\n"
        if process.container:
            yield Path(str(pid), "mountinfo"), _mounts(process)
        environment = {"HOSTNAME": process.hostname} if process.hostname else {}
        texts = [f"{name}={value}\0" for name, value in (environment | process.variables).items()]
        yield Path(str(pid), "environ"), "".join(texts)
        files = [file for gpu, each in held for file in _open_files(gpu, each, state.first_capability)]
        for number, file in enumerate(dict.fromkeys(["/dev/nvidiactl", *files]), start=3):
            yield Path(str(pid), "fd", str(number)), file


def cgroup_of(pod_uid: str, container: str) -> str:
    """The cgroup of a container of a pod, as systemd and containerd name it. Its ID follows from the names, for repeatability."""
    container_id = hashlib.sha256(f"{pod_uid}/{container}".encode()).hexdigest()
    pod = f"kubepods-besteffort-pod{pod_uid.replace('-', '_')}.slice"
    return f"/kubepods.slice/kubepods-besteffort.slice/{pod}/cri-containerd-{container_id}.scope"


def _mounts(process: GpuProcess) -> str:
    """The mount by which kubelet gives a container its termination log; its path has the names of the pod and the container."""
    uid = place_of(process.cgroup).pod
    source = f"/var/lib/kubelet/pods/{uid}/containers/{process.container}/1c0ffee0"
    return f"913 896 259:1 {source} /dev/termination-log rw,relatime - ext4 /dev/root rw\n"


def _by_pid(state: SimulatedNodeState) -> dict[int, list[tuple[GpuState, GpuProcess]]]:
    found: dict[int, list[tuple[GpuState, GpuProcess]]] = {}
    for gpu in state.gpus:
        for process in gpu.processes:
            found.setdefault(process.pid, []).append((gpu, process))
    return found


def _open_files(gpu: GpuState, process: GpuProcess, first: int) -> Iterator[str]:
    yield f"/dev/nvidia{gpu.minor}"
    gi, ci = process.gpu_instance, process.compute_instance
    if gi is not None:
        yield f"/dev/nvidia-caps/nvidia-cap{capability(gpu.minor, gi, first=first)}"
        if ci is not None:
            yield f"/dev/nvidia-caps/nvidia-cap{capability(gpu.minor, gi, ci, first=first)}"


@lru_cache(maxsize=64)
def _minors(minors: tuple[int, ...], first: int) -> str:
    lines = [f"config {_CONFIG}", f"monitor {_MONITOR}"]
    for minor in minors:
        for instance in range(_INSTANCES):
            place = f"gpu{minor}/gi{instance}"
            lines.append(f"{place}/access {capability(minor, instance, first=first)}")
            lines += [
                f"{place}/ci{each}/access {capability(minor, instance, each, first=first)}" for each in range(_COMPUTE)
            ]
    return "\n".join([*lines, ""])


def _access(minor: int, *, mode: int = 0o444) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
