"""What containers ask NVIDIA's device plugin for, and what keeps a pod from asking for it by claims.

Owns the plugin's resources and how kubelet hands its devices to the containers of a pod. Everything here is about one pod spec.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from draco.linting.model import TreePath
from draco.linting.objects import WrittenPodSpec, WrittenRequest, at, containers, listed, mapping, text
from draco.resources.errors import DracoError
from draco.resources.names import MIG_PROFILE
from draco.resources.quantity import Quantity

GPUS: Final = "nvidia.com/gpu"
MIG: Final = "nvidia.com/mig-"
MAX_DEVICES: Final = 32
"""The API's limit on the devices of one claim."""
_COMPUTE_SLICES: Final = re.compile(r"\d+c\.")


class NotConvertible(DracoError):
    """Why a pod keeps its extended resources, and the place of the reason."""

    def __init__(self, path: TreePath, sentence: str) -> None:
        super().__init__(sentence)
        self.path = path


class Asking(NamedTuple):
    """A container that asks: where it is, and how many devices of each resource it wants."""

    path: TreePath
    name: str
    wanted: Mapping[str, int]


def is_gpu_resource(name: str) -> bool:
    """Whether NVIDIA's device plugin, or a tool that extends it, serves GPUs under this name."""
    return name.startswith((GPUS, MIG))


def profile(resource: str) -> str:
    """The MIG profile that a resource stands for; the plugin writes a dot for the plus."""
    found = re.fullmatch(r"(.*gb)\.(.+)", resource.removeprefix(MIG))
    return f"{found[1]}+{found[2]}" if found else resource.removeprefix(MIG)


def asking(pod: WrittenPodSpec) -> list[Asking]:
    """The containers that ask for GPUs, in order. Raises NotConvertible."""
    return [
        Asking(container.path, text(container.fields.get("name")), wanted)
        for container in containers(pod)
        if (wanted := _wanted(container))
    ]


def _wanted(container: WrittenRequest) -> dict[str, int]:
    resources = (*container.path, "resources")
    limits, requests = (mapping(at(container.fields, ("resources", field))) for field in ("limits", "requests"))
    wanted = {}
    for resource in {**limits, **requests}:
        if not is_gpu_resource(resource):
            continue
        field = "limits" if resource in limits else "requests"
        path = (*resources, field, resource)
        amount = _whole(resource, (limits if resource in limits else requests)[resource], path)
        if resource not in limits:
            raise NotConvertible(
                path, f"it requests {resource} without a limit, which Kubernetes refuses: set the same limit."
            )
        if resource in requests and _whole(resource, requests[resource], (*resources, "requests", resource)) != amount:
            raise NotConvertible(
                path,
                f"it requests another amount of {resource} than its limit, which Kubernetes refuses: set both alike.",
            )
        if amount:
            _check(resource, path)
            wanted[resource] = amount
    if sum(wanted.values()) > MAX_DEVICES:
        raise NotConvertible(
            resources,
            f"it asks for {sum(wanted.values())} devices, and a claim has at most {MAX_DEVICES}: use several pods.",
        )
    return wanted


def _whole(resource: str, amount: object, path: TreePath) -> int:
    read = None if isinstance(amount, bool) else Quantity.read(str(amount))
    if read is None or read.nanos % 10**9 or read.sign() < 0:
        raise NotConvertible(path, f"{amount} is not a number of devices: write a whole number for {resource}.")
    return read.value()


def _check(resource: str, path: TreePath) -> None:
    """Refuse what is no whole GPU and no MIG device."""
    if resource.endswith(".shared"):
        raise NotConvertible(
            path,
            f"{resource} is a part of a GPU, whose size is in the device plugin's configuration: convert that with "
            "`draco migrate sharing`; its class then serves the resource, and the workload runs unchanged.",
        )
    if resource.startswith(MIG):
        wanted = profile(resource)
        if _COMPUTE_SLICES.match(wanted):
            raise NotConvertible(
                path,
                f"{wanted} is a part of an instance's compute slices, and Draco gives each instance all of them: ask for the "
                "profile of the whole instance, such as nvidia.com/mig-2g.10gb.",
            )
        if MIG_PROFILE.fullmatch(wanted) is None:
            raise NotConvertible(path, f"{resource} names no MIG profile; one is nvidia.com/mig-1g.10gb.")
    elif resource != GPUS:
        raise NotConvertible(
            path,
            f"{resource} is no resource of NVIDIA's device plugin, and asks for a part of a GPU: write a claim that asks for "
            "memory of a shared GPU instead (docs/how-to/shares.md).",
        )


def holders(pod: WrittenPodSpec, found: list[Asking]) -> Iterator[tuple[Asking, list[Asking]]]:
    """Each container that keeps its devices, with the init containers whose devices it takes over. Raises NotConvertible.

    Kubelet gives the devices of an init container to the next container that keeps its own: a sidecar after it, or the first of
    the pod's containers. With equal amounts, both have the same devices, as with one claim.
    """
    waiting: list[Asking] = []
    for each in found:
        waiting.append(each)
        if _is_init(each.path) and not _is_sidecar(pod, each.path):
            continue
        yield each, _alike(each, waiting[:-1])
        waiting = []
    if waiting:
        yield waiting[0], _alike(waiting[0], waiting[1:])


def _alike(holder: Asking, inits: list[Asking]) -> list[Asking]:
    for init in inits:
        if init.wanted != holder.wanted:
            raise NotConvertible(
                init.path,
                f"init container {init.name} and container {holder.name} ask for unlike numbers of devices, of which the device "
                "plugin gives both some: ask for the same in both, which then share a claim.",
            )
    return inits


def _is_init(path: TreePath) -> bool:
    return path[-2] == "initContainers"


def _is_sidecar(pod: WrittenPodSpec, path: TreePath) -> bool:
    return _is_init(path) and mapping(at(pod.spec, path[len(pod.path) :])).get("restartPolicy") == "Always"


def sees_all(pod: WrittenPodSpec) -> Iterator[tuple[TreePath, str]]:
    """Each container that sees all GPUs of its node without asking for one: its path, and its name."""
    for container in containers(pod):
        limits = mapping(at(container.fields, ("resources", "limits")))
        for number, variable in enumerate(map(mapping, listed(container.fields.get("env")))):
            is_all = variable.get("name") == "NVIDIA_VISIBLE_DEVICES" and variable.get("value") == "all"
            if is_all and not any(map(is_gpu_resource, limits)) and not at(container.fields, ("resources", "claims")):
                yield (*container.path, "env", number), text(container.fields.get("name"))
