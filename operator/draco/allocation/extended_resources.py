"""Extended resources of DeviceClasses: the claim that kube-scheduler makes for a pod that requests them.

Owns which class stands for a resource, and the requests of the claim. The scheduler creates the claim only when it binds the pod,
so until then it is computed here. Does not distinguish nodes whose device plugin offers the resource. Source: KEP-5004.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from draco.resources.api.claims import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from draco.resources.api.core import Container, Pod
from draco.resources.api.meta import ObjectMeta
from draco.resources.names import EXTENDED_BY_CLASS, is_extended_resource
from draco.resources.quantity import Quantity

LENT_SINCE_MINOR: Final = 35
"""The first release in which init containers may use the devices of later containers (kubernetes#134882)."""
DEFAULT_SINCE_MINOR: Final = 36
"""The first Kubernetes release with the feature on by default."""


def classes_asked(pod: Pod, classes: Mapping[str, DeviceClass]) -> dict[str, str]:
    """The extended resources that the pod requests and that have a class, with that class, sorted."""
    asked = {
        name
        for container in _containers(pod)
        for name in _asked(container)
        if is_extended_resource(name) and _amount(container, name)
    }
    found = {name: _class_of(name, classes) for name in sorted(asked)}
    return {name: device_class for name, device_class in found.items() if device_class}


def claim_for(pod: Pod, classes: Mapping[str, DeviceClass]) -> ResourceClaim | None:
    """The claim that kube-scheduler would make for the pod; None if no class stands for anything it requests."""
    asked = classes_asked(pod, classes)
    requests = [request for resource, name in asked.items() for request in _requests(pod, resource, name)]
    if not requests:
        return None
    metadata = ObjectMeta(name=f"{pod.metadata.name}-extended-resources", namespace=pod.metadata.namespace)
    return ResourceClaim(metadata=metadata, spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)))


def note(resource: str, device_class: str, minor: int | None, pod: Pod) -> str:
    """The text that explains such a claim of a pod."""
    text = (
        f"For {resource}, kube-scheduler makes a claim of DeviceClass {device_class}, whose requests are numbered like the pod's "
        "containers, init containers first"
    )
    if minor is not None and minor < DEFAULT_SINCE_MINOR:
        text = f"{text}; in Kubernetes 1.{minor} only with the feature gate DRAExtendedResource"
    least = sum(_count(request) for request in _requests(pod, resource, device_class))
    every = sum(_amount(container, resource) for container in _containers(pod))
    if minor is not None and minor < LENT_SINCE_MINOR and every > least:
        text = f"{text}, and for {every} devices instead of {least}, because init containers get devices of their own there"
    return f"{text}."


def _requests(pod: Pod, resource: str, device_class: str) -> list[DeviceRequest]:
    """One request per container that keeps running, and one for what init containers need beyond those, which they share."""
    lasting: dict[int, DeviceRequest] = {}
    passing: list[tuple[int, Container]] = []
    for index, container in enumerate(_containers(pod)):
        if index < len(pod.spec.init_containers) and container.restart_policy != "Always":
            passing.append((index, container))
        elif count := _amount(container, resource):
            lasting[index] = _request(index, container, resource, device_class, count)
    most: DeviceRequest | None = None
    for index, container in passing:
        lent = sum(_count(request) for place, request in lasting.items() if place > index)
        lacking = _amount(container, resource) - lent
        if lacking > 0 and (most is None or lacking > _count(most)):
            most = _request(index, container, resource, device_class, lacking)
    return [*([most] if most is not None else []), *lasting.values()]


def _request(index: int, container: Container, resource: str, device_class: str, count: int) -> DeviceRequest:
    place = sorted(_asked(container)).index(resource)
    exactly = ExactDeviceRequest(device_class_name=device_class, allocation_mode="ExactCount", count=count)
    return DeviceRequest(name=f"container-{index}-request-{place}", exactly=exactly)


def _count(request: DeviceRequest) -> int:
    return request.exactly.count if request.exactly is not None else 0


def _containers(pod: Pod) -> Sequence[Container]:
    return [*pod.spec.init_containers, *pod.spec.containers]


def _asked(container: Container) -> dict[str, str | int | float]:
    """Requests, or limits where there is no request, as the API server defaults them."""
    return {**container.resources.limits, **container.resources.requests}


def _amount(container: Container, resource: str) -> int:
    """The whole number requested of a resource; anything else counts as 0."""
    amount = Quantity.read(str(_asked(container).get(resource, 0)))
    whole, rest = divmod(amount.nanos if amount is not None else 0, 10**9)
    return 0 if rest else whole


def _class_of(resource: str, classes: Mapping[str, DeviceClass]) -> str:
    """The class of the resource: the newest, of equally old ones the first by name; "" if there is none."""
    if resource.startswith(EXTENDED_BY_CLASS):
        name = resource.removeprefix(EXTENDED_BY_CLASS)
        return name if name in classes else ""
    found = [each for each in classes.values() if each.spec.extended_resource_name == resource]
    return min(found, key=_age_and_name).metadata.name if found else ""


def _age_and_name(device_class: DeviceClass) -> tuple[float, str]:
    """Sort the newest first. Classes read from files have no age and count as newest."""
    created = device_class.metadata.creation_timestamp
    return (-created.timestamp() if created is not None else float("-inf"), device_class.metadata.name)
