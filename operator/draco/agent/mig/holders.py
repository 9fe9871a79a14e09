"""Finds what keeps an instance from being destroyed: processes, and their containers and pods.

Owns the search below /proc, which is slow where many processes run. It does not call NVML, so nobody who needs NVML waits for it.
Ends no process: the answer is for people.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from draco.agent.hardware.capabilities import Capabilities, CapabilityUnknown
from draco.agent.hardware.gpus import Gpu, Instance
from draco.resources.texts import listed, shown

_DEVICE = re.compile(r"(?:^|\0)DRACO_DEVICE_[A-Z0-9_]+=([^\0]{1,64})(?=\0|$)")
"""The variable that our CDI specs set for each device."""
_CLAIM = re.compile(r"(?:^|\0)DRACO_CLAIM_[A-Z0-9_]+=([^\0]{1,64})(?=\0|$)")
"""The variable that our CDI specs set for each claim."""
MOST = 3
"""How many holders are named; the others are counted."""

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
"""A pod's UID in its cgroup; that of a static pod has no dashes."""
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_MOUNTED = re.compile(r"^\S+ \S+ \S+ \S*/pods/([0-9a-f-]+)/containers/([a-z0-9-]{1,63})/", re.MULTILINE)
"""The mount of a container's termination log, whose source kubelet names after pod and container."""
_HOSTNAME = re.compile(r"(?:^|\0)HOSTNAME=([a-z0-9.-]{1,253})(?:\0|$)")
"""The longest possible pod name; a process may have written anything."""


class CgroupPlace(NamedTuple):
    """The UID of a process's pod and the ID of its container; "" in none, or if its cgroup is unreadable."""

    pod: str = ""
    container: str = ""


def place_of(cgroup: str) -> CgroupPlace:
    """Where a process runs, by the text of /proc/<pid>/cgroup.

    containerd, CRI-O and Docker write the container's ID after the pod's UID, with their own prefix and suffix, and crun adds a
    cgroup below. The first ID counts: cgroups below it are made in the container. An ID before the pod's UID is that of a node
    that runs in a container.
    """
    found = CgroupPlace()
    for line in cgroup.splitlines():
        pod = _POD.search(line)
        container = _CONTAINER.search(line, pod.end() if pod else 0)
        if pod:
            return CgroupPlace(pod[1].replace("_", "-"), container[0] if container else "")
        if container and not found.container:
            found = CgroupPlace(container=container[0])
    return found


class HoldingProcess(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A process that holds a GPU or an instance. Empty fields: unknown, or it runs in no container."""

    pid: int
    command: str = ""
    container: str = ""
    pod: str = ""
    hostname: str = ""

    @property
    def contained(self) -> bool:
        """Whether it runs in a container."""
        return bool(self.pod or self.container)

    def __str__(self) -> str:
        what = f"process {self.pid}" + (f" ({self.command})" if self.command else "")
        return f"{what} {self.place}" if self.place else what

    @property
    def place(self) -> str:
        """Its container and pod; "" in none."""
        what = ""
        if self.container:
            what += f"in container {self.container[:12]} "
        if self.pod:
            # A pod's name is its processes' host name unless it uses the host's network.
            what += f"of pod {self.hostname or 'with uid'} {f'({self.pod})' if self.hostname else self.pod}"
        return what.strip()


def own_pid(proc: Path) -> int:
    """The agent's PID among the processes below `proc`; inside its container it has another one."""
    try:
        return int((proc / "self").readlink().name)
    except (OSError, ValueError):
        return os.getpid()


class Holders:
    """Looks up processes below `proc`, the node's /proc. `own` is the agent's PID, which never counts."""

    def __init__(self, proc: Path = Path("/proc"), *, own: int = 0) -> None:
        self._proc = proc
        self._own = own

    def named(self, pids: Iterable[int]) -> list[HoldingProcess]:
        """Processes by PID."""
        return [self._holder(pid) for pid in sorted(set(pids))]

    def having_open(self, *paths: str) -> list[HoldingProcess]:
        """The processes that have one of the device nodes open. Unreadable processes are left out."""
        wanted = set(paths)
        return [self._holder(pid) for pid in self._pids() if pid != self._own and wanted & set(self._open(pid))]

    def told_of(self, devices: Collection[str]) -> list[HoldingProcess]:
        """The processes in containers whose environment names one of these UUIDs, as our CDI specs do."""
        found = []
        for pid in self._pids():
            if pid == self._own or not _in_container(_text(f"{self._proc}/{pid}/cgroup")):
                continue
            if not set(devices).isdisjoint(_DEVICE.findall(_text(f"{self._proc}/{pid}/environ"))):
                found.append(self._holder(pid))
        return found

    def place(self, pid: int) -> CgroupPlace:
        """Where a process runs."""
        return place_of(_text(f"{self._proc}/{pid}/cgroup"))

    def cgroup(self, pid: int) -> str:
        """The path of a process's cgroup of version 2; "" if it has none, or it is unreadable."""
        lines = _text(f"{self._proc}/{pid}/cgroup").splitlines()
        return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")

    def container_name(self, pid: int, pod: str) -> str:
        """The name of a process's container, by what kubelet mounts there for its pod; "" if unknown."""
        mounts = _text(f"{self._proc}/{pid}/mountinfo")
        return next((found[2] for found in _MOUNTED.finditer(mounts) if found[1] == pod), "")

    def claims_told(self, pid: int) -> frozenset[str]:
        """The UIDs of claims in a process's environment. Programs can change it, so it only chooses among claims of their pod."""
        return frozenset(_CLAIM.findall(_text(f"{self._proc}/{pid}/environ")))

    def of_the_node(self, pid: int) -> bool:
        """Whether a process certainly runs in no container. Unknown, so False, if its cgroup is unreadable."""
        cgroup = _text(self._proc / str(pid) / "cgroup")
        return bool(cgroup.strip()) and not _in_container(cgroup)

    def _pids(self) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(self._proc) if name.isdigit())  # noqa: PTH208 - as below
        except OSError:
            return []

    def _open(self, pid: int) -> Iterator[str]:
        try:
            for descriptor in (self._proc / str(pid) / "fd").iterdir():
                try:
                    yield str(descriptor.readlink())
                except OSError:
                    continue
        except OSError:
            return

    def _holder(self, pid: int) -> HoldingProcess:
        folder = self._proc / str(pid)
        place = place_of(_text(folder / "cgroup"))
        hostname = _HOSTNAME.search(_text(folder / "environ"))
        return HoldingProcess(
            pid=pid,
            command=shown(_text(folder / "comm").strip()),
            container=place.container,
            pod=place.pod,
            hostname=hostname[1] if hostname else "",
        )


class HolderSearch:
    """Finds the users of an instance: those that NVML lists, else those that have its nodes open.

    Processes that only have the whole GPU open, as monitoring programs do, are named only if no other user is found.
    """

    def __init__(self, holders: Holders, capabilities: Capabilities) -> None:
        self._holders = holders
        self._capabilities = capabilities

    def __call__(self, one: Instance | None, gpu: Gpu, listed: Sequence[int]) -> str:
        """The holders of an instance, or of the GPU, in one phrase; "" if none is found. `listed`: the PIDs that NVML lists."""
        near = self._holders.named(listed)
        if one is not None:
            with suppress(CapabilityUnknown):
                near = near or self._holders.having_open(*self._capabilities.paths(gpu.minor, one.gi, one.ci))
        if near:
            return sentence(near)
        far = sentence(self._holders.having_open(f"/dev/nvidia{gpu.minor}"))
        # Users of other instances of the GPU have it open too.
        return f"a process that NVML does not list, perhaps {far}" if far and one is not None else far


def sentence(holders: Iterable[HoldingProcess]) -> str:
    """The holders in one phrase; "" without any."""
    return listed(holders, MOST)


def _in_container(cgroup: str) -> bool:
    return any(place_of(cgroup))


def _text(path: str | Path) -> str:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - pathlib takes three times as long
            return file.read().decode(errors="replace")
    except OSError:
        return ""
