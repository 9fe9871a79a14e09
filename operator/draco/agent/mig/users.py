"""Which processes keep a device from the next claim: those of earlier claims' containers, while they run.

Kubelet may unprepare a claim under a running container. Owns which processes count:

- a process in a container that NVML lists on the device counts, whichever its pod;
- so does one in a container whose environment names the device as our CDI specs do: it can use the device at any time. While
  other claims may use the device, too, by administrative access or with a share of it, only pods of the last claim count in these
  ways: nobody knows all pods of the others;
- one that computes and certainly runs in no container may belong to anybody. It counts for UNKNOWN_S and is then the node's own:
  a server that shares GPUs, or a person's program. A process that only has the device open, as monitoring does, never counts.

Pods of the claim itself, of claims with administrative access, and of other shares of the device may be there. Changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from draco.agent.hardware.gpus import PlacementKey
from draco.agent.hardware.nvml_instances import RunningProcesses
from draco.agent.mig.holders import Holders, HoldingProcess
from draco.agent.record.checkpoint import Checkpoint
from draco.agent.record.contents import PreparationState, PreparedClaim, PreparedDevice
from draco.resources.names import ClaimUid, GpuUuid

log = structlog.get_logger()

UNKNOWN_S: Final = 60.0
"""How long an unknown process outside containers keeps a device."""
UNLISTED: Final = RunningProcesses()
Place = GpuUuid | PlacementKey
_Asked = tuple[Place, ClaimUid | None]


class HeldDevice(NamedTuple):
    """A device that a claim holds, by its UUID as containers see it."""

    claim: ClaimUid
    uuid: str


class DeviceUsers:
    """The processes on one node's devices. `monotonic` in seconds."""

    def __init__(self, record: Checkpoint, holders: Holders, *, monotonic: Callable[[], float]) -> None:
        self._record = record
        self._holders = holders
        self._monotonic = monotonic
        self._unknown_since_s: dict[_Asked, dict[int, float]] = {}

    def earlier(
        self, claim: PreparedClaim, place: Place, running: RunningProcesses, *, uuid: str
    ) -> HoldingProcess | None:
        """A process of an earlier user that still runs on a GPU or instance that a claim is to get; None without one.

        `running`: the processes that NVML lists on it. `uuid`: its UUID; with "", only listed processes count.
        """
        last = self._record.last_users.get(place)
        if last is not None and last.uid == claim.uid:
            return None  # kubelet unprepared it too early: its own processes are there
        at_home = [claim, *self._beside(claim, place)]
        for process in self._counting((place, None), running, uuid, last, unsure=len(at_home) > 1):
            if not any(_is_of(process, one) for one in at_home):
                return process
        return None

    def of(self, claim: PreparedClaim, running: Mapping[str, RunningProcesses]) -> list[HoldingProcess]:
        """A claim's remaining processes on its devices. `running`: what NVML lists, by UUID of GPU or instance."""
        found: dict[int, HoldingProcess] = {}
        self._unknown_since_s = {
            asked: since
            for asked, since in self._unknown_since_s.items()
            if asked[1] is None or asked[1] in self._record.claims
        }
        for device in claim.devices:
            uuid = device_uuid(device)
            place = device.key or device.gpu
            others = self._beside(claim, place)
            listed = running.get(uuid, UNLISTED)
            for process in self._counting((place, claim.uid), listed, uuid, claim, unsure=bool(others) or device.admin):
                if not any(_is_of(process, one) for one in others):
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
        """The processes that count on a device. `unsure`: containers of other claims may rightly have it."""
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
        """Whether a computing process that cannot be assigned to the claim still keeps the device."""
        if not process.contained and not self._holders.of_the_node(process.pid):
            return True  # it may run in a container: its cgroup is unreadable
        since = self._unknown_since_s.setdefault(asked, {})
        now_s = self._monotonic()
        if now_s - since.setdefault(process.pid, now_s) < UNKNOWN_S:
            return True
        if since[process.pid] >= 0:
            log.warning("gpu.user_unknown", device=str(asked[0]), process=str(process), waited_s=UNKNOWN_S)
            since[process.pid] = -float("inf")  # the node's own from now on
        return False

    def _forget(self, asked: _Asked, pids: Sequence[int]) -> None:
        known = self._unknown_since_s.get(asked, {})
        left = {pid: since_s for pid, since_s in known.items() if pid in pids}
        if left:
            self._unknown_since_s[asked] = left
        else:
            self._unknown_since_s.pop(asked, None)

    def _beside(self, claim: PreparedClaim, place: Place) -> list[PreparedClaim]:
        """Other prepared claims that may use the device, too: by administrative access to the GPU, or with another share."""
        gpu = place.gpu if isinstance(place, PlacementKey) else place
        shares = _has_share(claim, place)
        return [
            other
            for other in self._record.claims.values()
            if other.state is PreparationState.PREPARED
            and other.uid != claim.uid
            and (any(one.admin and one.gpu == gpu for one in other.devices) or (shares and _has_share(other, place)))
        ]


def _has_share(claim: PreparedClaim, place: Place) -> bool:
    return any(one.share_id and not one.admin and (one.key or one.gpu) == place for one in claim.devices)


def device_uuid(device: PreparedDevice) -> str:
    """The device's UUID as its containers see it."""
    return device.gpu if device.partition is None else device.partition.uuid


def named(processes: Iterable[HoldingProcess]) -> str:
    """The first process in a refusal: process 4711 of an earlier user still runs on it (train, in container 1a2b)."""
    first = next(iter(processes))
    details = ", ".join(filter(None, (first.command, first.place)))
    return f"process {first.pid} of an earlier user still runs on it" + (f" ({details})" if details else "")


def _is_of(process: HoldingProcess, claim: PreparedClaim) -> bool:
    """Whether a process runs in one of a claim's pods; by host name only if its cgroup names no pod."""
    if process.pod:
        return any(process.pod == pod.uid for pod in claim.pods)
    return bool(process.hostname) and any(process.hostname == pod.name for pod in claim.pods)
