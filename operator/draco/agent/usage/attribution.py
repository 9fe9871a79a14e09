"""Whose processes use a device: their container, its pod, and the claim by which they have it.

A process is known by its cgroup, which programs in a container cannot choose. Its pod decides the claim: one that was reserved
for the pod and has the device; of several, the one that the container was given. Who only has the GPU in common with a claim gets
nothing of it. Pure: every process is counted once, and what cannot be attributed is counted as of nobody.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from draco.agent.hardware.nvml_usage import DeviceUse, ProcessUse
from draco.agent.mig.users import device_uuid
from draco.agent.record.contents import ClaimPod, PreparationState, PreparedClaim
from draco.resources.names import ClaimUid

MOST_USERS = 512
"""Users of one node that are named; what the others use is counted as of nobody."""


class ProcessPlace(msgspec.Struct, frozen=True):
    """Where a process runs: its pod's UID, its container's ID and name. "" if it runs in none, or if that is unknown.

    `claims` are the UIDs of claims that the container says it has.
    """

    pod: str = ""
    container: str = ""
    name: str = ""
    claims: frozenset[str] = frozenset()


NOWHERE = ProcessPlace()


class ContainerUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of one container use of a device together, and its possible claims; None: not reported.

    A claim whose device nobody uses has an entry without processes. `largest` is the PID of the process with most memory, or 0.
    """

    device: DeviceUse
    place: ProcessPlace = NOWHERE
    namespace: str = ""
    pod: str = ""
    claims: tuple[PreparedClaim, ...] = ()
    processes: int = 0
    largest: int = 0
    memory_bytes: int | None = None
    utilization: int | None = None

    @property
    def claim(self) -> PreparedClaim | None:
        """Its claim, if there is only one."""
        return self.claims[0] if len(self.claims) == 1 else None


def attributed(
    devices: Iterable[DeviceUse],
    places: Mapping[int, ProcessPlace],
    claims: Iterable[PreparedClaim],
    later_pods: Mapping[ClaimUid, Sequence[ClaimPod]],
) -> list[ContainerUse]:
    """Who uses the devices. `places` by PID; `later_pods`: pods for which claims were reserved after they were prepared."""
    prepared = [one for one in claims if one.state is PreparationState.PREPARED]
    pods = _Pods(prepared, later_pods)
    found: list[ContainerUse] = []
    for device in devices:
        holders = [one for one in prepared if any(device_uuid(each) == device.uuid for each in one.devices)]
        found += _of_device(device, places, holders, pods)
    return _bounded(found)


class _Pods:
    """The pods for which claims are reserved."""

    def __init__(self, claims: Iterable[PreparedClaim], later: Mapping[ClaimUid, Sequence[ClaimPod]]) -> None:
        self._of: dict[ClaimUid, set[ClaimPod]] = {}
        self._named: dict[str, tuple[str, str]] = {}
        for claim in claims:
            self._of[claim.uid] = {*claim.pods, *later.get(claim.uid, ())}
            self._named |= {pod.uid: (claim.namespace, pod.name) for pod in self._of[claim.uid]}

    def claims_of(self, place: ProcessPlace, holders: Sequence[PreparedClaim]) -> list[PreparedClaim]:
        """The claims of a device by which a container may have it. One that is reserved for a group names no pods.

        What the container says counts only among several claims of its pod: a program may say anything.
        """
        if not place.pod:
            return []
        named = [one for one in holders if any(each.uid == place.pod for each in self._of[one.uid])]
        possible = named or [one for one in holders if not self._of[one.uid]]
        return [one for one in possible if one.uid in place.claims] or possible

    def name(self, pod: str) -> tuple[str, str]:
        """A pod's namespace and name; "" and its UID if they are unknown."""
        return self._named.get(pod, ("", pod))

    def only(self, claim: PreparedClaim) -> str:
        """The name of a claim's only pod; "" if it has several or none."""
        pods = [each.name for each in self._of[claim.uid]]
        return pods[0] if len(pods) == 1 else ""


def _of_device(
    device: DeviceUse, places: Mapping[int, ProcessPlace], holders: Sequence[PreparedClaim], pods: _Pods
) -> Iterator[ContainerUse]:
    groups: dict[ProcessPlace, list[ProcessUse]] = {}
    for process in device.processes:
        groups.setdefault(places.get(process.pid, NOWHERE), []).append(process)
    used: set[ClaimUid] = set()
    for place, processes in groups.items():
        candidates = pods.claims_of(place, holders)
        used.update(one.uid for one in candidates)
        memory = _sum([one.memory_bytes for one in processes])
        if memory is None and len(groups) == 1:
            memory = device.used_bytes  # the driver does not tell it by process, and nobody else is there
        utilization = _sum([one.utilization for one in processes])
        if utilization is None and device.instance is not None and (len(groups) == 1 or device.utilization == 0):
            utilization = device.utilization  # likewise; and if nothing ran there, nothing of theirs did
        namespace, name = pods.name(place.pod)
        yield ContainerUse(
            device=device,
            place=place,
            namespace=candidates[0].namespace if candidates else namespace,
            pod=name,
            claims=tuple(candidates),
            processes=len(processes),
            largest=max(processes, key=lambda one: one.memory_bytes or 0).pid,
            memory_bytes=memory,
            utilization=utilization,
        )
    for claim in holders:
        if claim.uid not in used:
            yield ContainerUse(
                device=device,
                namespace=claim.namespace,
                pod=pods.only(claim),
                claims=(claim,),
                memory_bytes=0,
                utilization=0 if device.instance is None or device.utilization is not None else None,
            )


def _sum(values: Sequence[int | None]) -> int | None:
    told = [each for each in values if each is not None]
    return sum(told) if len(told) == len(values) else None


def _bounded(found: list[ContainerUse]) -> list[ContainerUse]:
    """At most MOST_USERS, of which those with processes and much memory are named; the others as one of nobody per device."""
    if len(found) <= MOST_USERS:
        return found
    by_weight = sorted(found, key=lambda one: (bool(one.processes), one.memory_bytes or 0), reverse=True)
    rest: dict[str, list[ContainerUse]] = {}
    for one in by_weight[MOST_USERS:]:
        rest.setdefault(one.device.uuid, []).append(one)
    together = [
        ContainerUse(
            device=some[0].device,
            processes=sum(one.processes for one in some),
            memory_bytes=_sum([one.memory_bytes for one in some]),
            utilization=_sum([one.utilization for one in some]),
        )
        for some in rest.values()
    ]
    return by_weight[:MOST_USERS] + together
