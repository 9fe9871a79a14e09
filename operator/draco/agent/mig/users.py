"""Whose processes keep a device from the next claim: those of earlier claims' containers, for as long as they run.

Kubelet may give a claim up under a running container, and its word is final; the hardware knows better. Owns which processes
count:

- a process in a container that computes or draws on the device, by NVML, counts, whatever pod it is of: nobody shares a GPU;
- so does one in a container whose environment names the device as our CDI specs do: it can use it at any time. A claim with
  administrative access gives its containers the same variable, so while there is one, only pods of the last claim count by it;
- one that computes and certainly runs in no container may be anybody's. It is waited for, for UNKNOWN_S, and then it is the
  node's own: a server that shares GPUs, a person's program. What only keeps the device open, as monitoring does, never counts.

Pods of the claim itself, and of those with administrative access, may be there. Looks below /proc and at what the caller was told
by NVML; changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from draco.agent.hardware.gpus import PlacementKey
from draco.agent.hardware.nvml_instances import RunningProcesses
from draco.agent.mig.holders import Holders, HoldingProcess
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim, PreparedDevice
from draco.resources.names import ClaimUid, GpuUuid

log = structlog.get_logger()

UNKNOWN_S: Final = 60.0
"""So long a process in no container is waited for that nobody knows."""
UNLISTED: Final = RunningProcesses()
Place = GpuUuid | PlacementKey
_Asked = tuple[Place, ClaimUid | None]


class DeviceUsers:
    """Who uses the devices of one node. `monotonic` in seconds."""

    def __init__(self, record: Checkpoint, holders: Holders, *, monotonic: Callable[[], float]) -> None:
        self._record = record
        self._holders = holders
        self._monotonic = monotonic
        self._unknown_since_s: dict[_Asked, dict[int, float]] = {}

    def earlier(
        self, claim: PreparedClaim, place: Place, running: RunningProcesses, *, uuid: str
    ) -> HoldingProcess | None:
        """A process of an earlier user that still runs on a GPU or an instance which a claim is about to get.

        `running` are those that NVML lists on it. `uuid` is its own; "": processes that do not run on it do not count.
        """
        last = self._record.last_users.get(place)
        if last is not None and last.uid == claim.uid:
            return None  # kubelet gave it up too early: its own processes are there
        at_home = [claim, *self._admins(place)]
        for process in self._counting((place, None), running, uuid, last, unsure=len(at_home) > 1):
            if not any(_is_of(process, one) for one in at_home):
                return process
        return None

    def of(self, claim: PreparedClaim, running: Mapping[str, RunningProcesses]) -> list[HoldingProcess]:
        """The processes that a claim still has on its devices. `running`: what NVML lists, by UUID of GPU or instance."""
        found: dict[int, HoldingProcess] = {}
        self._unknown_since_s = {
            asked: since
            for asked, since in self._unknown_since_s.items()
            if asked[1] is None or asked[1] in self._record.claims
        }
        for device in claim.devices:
            uuid = device_uuid(device)
            place = device.key or device.gpu
            admins = [one for one in self._admins(place) if one.uid != claim.uid]
            listed = running.get(uuid, UNLISTED)
            for process in self._counting((place, claim.uid), listed, uuid, claim, unsure=bool(admins) or device.admin):
                if not any(_is_of(process, one) for one in admins):
                    found[process.pid] = process
        return list(found.values())

    def _counting(
        self,
        asked: _Asked,
        running: RunningProcesses,
        uuid: str,
        last: PreparedClaim | None,
        *,
        unsure: bool,
    ) -> Iterator[HoldingProcess]:
        """The processes that count on a device, whose they may be. `unsure`: others' containers may have the device by right."""
        self._forget(asked, running.computing)
        for process in self._holders.named([*running.computing, *running.drawing]):
            of_last = last is not None and _is_of(process, last)
            computes = process.pid in running.computing
            if of_last or (process.contained and not unsure) or (computes and self._is_waited_for(asked, process)):
                yield process
        for process in self._holders.told_of([uuid]) if uuid else ():
            if not unsure or (last is not None and _is_of(process, last)):
                yield process

    def _is_waited_for(self, asked: _Asked, process: HoldingProcess) -> bool:
        """Whether a process that computes, and that nothing tells the claim of, keeps the device yet."""
        if not process.contained and not self._holders.of_the_node(process.pid):
            return True  # it may well be in a container: its cgroup cannot be read
        since = self._unknown_since_s.setdefault(asked, {})
        now_s = self._monotonic()
        if now_s - since.setdefault(process.pid, now_s) < UNKNOWN_S:
            return True
        if since[process.pid] >= 0:
            log.warning("gpu.user_unknown", device=str(asked[0]), process=str(process), waited_s=UNKNOWN_S)
            since[process.pid] = -float("inf")  # it is the node's own from now on
        return False

    def _forget(self, asked: _Asked, pids: Sequence[int]) -> None:
        known = self._unknown_since_s.get(asked, {})
        left = {pid: since_s for pid, since_s in known.items() if pid in pids}
        if left:
            self._unknown_since_s[asked] = left
        else:
            self._unknown_since_s.pop(asked, None)

    def _admins(self, place: Place) -> list[PreparedClaim]:
        """The prepared claims that have something of the GPU by administrative access."""
        gpu = place.gpu if isinstance(place, PlacementKey) else place
        return [
            claim
            for claim in self._record.claims.values()
            if claim.state is PreparationState.PREPARED and any(one.admin and one.gpu == gpu for one in claim.devices)
        ]


def device_uuid(device: PreparedDevice) -> str:
    """The UUID by which its containers know a device of a prepared claim."""
    return device.gpu if device.partition is None else device.partition.uuid


def named(processes: Iterable[HoldingProcess]) -> str:
    """The first of them as a refusal names it: process 4711 of an earlier user still runs on it (train, in container 1a2b)."""
    first = next(iter(processes))
    details = ", ".join(filter(None, (first.command, first.place)))
    return f"process {first.pid} of an earlier user still runs on it" + (f" ({details})" if details else "")


def _is_of(process: HoldingProcess, claim: PreparedClaim) -> bool:
    """Whether a process runs in one of a claim's pods. By its host name only where its cgroup does not say more."""
    if process.pod:
        return any(process.pod == pod.uid for pod in claim.pods)
    return bool(process.hostname) and any(process.hostname == pod.name for pod in claim.pods)
