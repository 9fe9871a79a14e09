"""What a DeviceReservation may not request."""

from typing import Any

import msgspec
import pytest

from draco.reservations.validity import problem_of
from draco.resources.api.claims import (
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceClass,
    OpaqueConfiguration,
    ResourceClaimSpec,
)
from draco.resources.api.foreign import DEEPEST_OPAQUE
from draco.resources.names import ALLOCATED_BY_OPERATOR, LABEL_ALLOCATOR
from tests.builders import a_claim, a_device_class


def asking(parameters: Any) -> ResourceClaimSpec:
    opaque = OpaqueConfiguration(driver="gpu.nvidia.com", parameters=parameters)
    claim: DeviceClaim = a_claim("any", device_class="any").spec.devices
    return ResourceClaimSpec(devices=msgspec.structs.replace(claim, config=[DeviceClaimConfiguration(opaque=opaque)]))


def classes() -> dict[str, DeviceClass]:
    found = a_device_class("any")
    labels = {LABEL_ALLOCATOR: ALLOCATED_BY_OPERATOR}
    return {"any": msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels=labels))}


def nested(levels: int) -> Any:
    value: Any = {}
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("levels", [DEEPEST_OPAQUE, DEEPEST_OPAQUE + 1, 900])
def test_parameters_that_draco_would_pass_on_in_part_only_are_a_problem(levels: int) -> None:
    problem = problem_of(asking(nested(levels)), classes())
    assert problem is not None
    assert problem.reason == "ParametersTooDeep"


@pytest.mark.parametrize("parameters", [None, {}, {"a": {"b": [1]}}, nested(DEEPEST_OPAQUE - 1)])
def test_parameters_that_are_passed_on_as_they_are_are_none(parameters: Any) -> None:
    assert problem_of(asking(parameters), classes()) is None
