"""Extended resources that DeviceClasses provide: Draco creates the same claim as kube-scheduler.

Names and counts of the requests are those that `createRequestsAndMappings` of kube-scheduler 1.36 gives for the same pods.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from draco.allocation.extended_resources import claim_for, classes_asked, note
from draco.resources.api.claims import DeviceClass, DeviceClassSpec
from draco.resources.api.core import Container, Pod, PodSpec, ResourceRequirements
from draco.resources.api.meta import ObjectMeta

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/other"


def a_class(name: str, resource: str | None = GPU, created: int = 2020) -> DeviceClass:
    metadata = ObjectMeta(name=name, creation_timestamp=datetime(created, 1, 1, tzinfo=UTC))
    return DeviceClass(metadata=metadata, spec=DeviceClassSpec(extended_resource_name=resource))


CLASSES = {"gpu": a_class("gpu"), "other": a_class("other", None)}


def a_container(restart: str = "", **amounts: Any) -> Container:
    names = {"gpu": GPU, "implicit": IMPLICIT}
    limits = {names.get(name, name): amount for name, amount in amounts.items()}
    return Container(name="c", resources=ResourceRequirements(limits=limits), restart_policy=restart)


def a_pod(*containers: Container, init: tuple[Container, ...] = ()) -> Pod:
    spec = PodSpec(containers=list(containers), init_containers=list(init))
    return Pod(metadata=ObjectMeta(name="train", namespace="ml"), spec=spec)


def requested(pod: Pod, classes: Mapping[str, DeviceClass] = CLASSES) -> list[tuple[str, str, int]]:
    claim = claim_for(pod, classes)
    assert claim is not None
    asked = [(each.name, each.exactly) for each in claim.spec.devices.requests]
    return [(name, exactly.device_class_name, exactly.count) for name, exactly in asked if exactly is not None]


@pytest.mark.parametrize(
    ("pod", "requests"),
    [
        (a_pod(a_container(gpu=2)), [("container-0-request-0", "gpu", 2)]),
        (a_pod(a_container(cpu="1", gpu="2", memory="1Gi")), [("container-0-request-1", "gpu", 2)]),
        (
            a_pod(a_container(), a_container(gpu=1), a_container(gpu=3)),
            [("container-1-request-0", "gpu", 1), ("container-2-request-0", "gpu", 3)],
        ),
        (a_pod(a_container(gpu=2), init=(a_container(gpu=2),)), [("container-1-request-0", "gpu", 2)]),
        (
            a_pod(a_container(gpu=2), init=(a_container(gpu=5), a_container(gpu=6))),
            [("container-1-request-0", "gpu", 4), ("container-2-request-0", "gpu", 2)],
        ),
        (
            a_pod(a_container(gpu=1), init=(a_container(gpu=2), a_container("Always", gpu=1), a_container(gpu=2))),
            [
                ("container-2-request-0", "gpu", 1),
                ("container-1-request-0", "gpu", 1),
                ("container-3-request-0", "gpu", 1),
            ],
        ),
        (
            a_pod(a_container(gpu=1, implicit=2)),
            [("container-0-request-0", "other", 2), ("container-0-request-1", "gpu", 1)],
        ),
    ],
)
def test_the_requests_are_those_of_the_scheduler(pod: Pod, requests: list[tuple[str, str, int]]) -> None:
    assert requested(pod) == requests


@pytest.mark.parametrize("amounts", [{}, {"cpu": 1}, {"gpu": 0}, {"gpu": "many"}, {"nvidia.com/gpu": 1}])
def test_a_pod_that_asks_for_no_class_has_no_such_claim(amounts: dict[str, Any]) -> None:
    assert claim_for(a_pod(a_container(**amounts)), CLASSES) is None


def test_a_request_counts_before_a_limit() -> None:
    asked = ResourceRequirements(limits={GPU: 1}, requests={GPU: 1, "cpu": "100m"})
    assert requested(a_pod(Container(name="c", resources=asked))) == [("container-0-request-1", "gpu", 1)]


def test_of_several_classes_the_newest_stands_for_a_resource_and_then_the_first_by_name() -> None:
    pod = a_pod(a_container(gpu=1))
    old, young, alike = a_class("a", created=2019), a_class("c", created=2021), a_class("b", created=2021)
    classes = {each.metadata.name: each for each in (old, young, alike)}
    assert classes_asked(pod, classes) == {GPU: "b"}
    only_meant = msgspec.structs.replace(old, metadata=ObjectMeta(name="z"))
    assert classes_asked(pod, {**classes, "z": only_meant}) == {GPU: "z"}


def test_the_claim_is_named_after_the_pod_and_told_of() -> None:
    claim = claim_for(a_pod(a_container(gpu=1)), CLASSES)
    assert claim is not None
    assert str(claim.metadata.key) == "ml/train-extended-resources"
    assert "feature gate" not in note(GPU, "gpu", 36, a_pod(a_container(gpu=1)))
    gated = "in Kubernetes 1.35 only with the feature gate DRAExtendedResource"
    assert gated in note(GPU, "gpu", 35, a_pod(a_container(gpu=1)))


def test_a_release_in_which_init_containers_borrow_nothing_is_told_to_take_more() -> None:
    init = (a_container(gpu=1), a_container("Always", gpu=1), a_container(gpu=2))
    staged = a_pod(a_container(gpu=1), init=init)
    assert "for 5 devices instead of 3" in note(GPU, "gpu", 34, staged)
    assert "instead of" not in note(GPU, "gpu", 35, staged) + note(GPU, "gpu", 34, a_pod(init=(a_container(gpu=2),)))
