"""What `draco lint` says of claims for shares that no container could use together."""

from typing import Any

import pytest
import yaml

from tests.unit.linting.test_rules import checked

MPS = 'device.attributes["draco.dev"].?memoryLimit.orValue("") == "mps"'


def a_claim(count: Any, *selectors: str, **fields: Any) -> str:
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": count, **fields}
    exactly |= {"selectors": [{"cel": {"expression": each}} for each in selectors]} if selectors else {}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shares"}}
    return yaml.safe_dump({**head, "spec": spec})


@pytest.mark.parametrize("expression", [MPS, f"device.allowMultipleAllocations && {MPS}"])
def test_several_gpus_with_mps_are_told_when_the_claim_is_written(expression: str) -> None:
    [told] = checked(a_claim(2, expression)).findings
    assert (told.rule, told.severity) == ("shares-together", "warning")
    assert told.message.startswith(
        "it wants 2 GPUs that are shared with MPS, and a container can be the client of only one"
    )


@pytest.mark.parametrize(
    ("count", "selectors"),
    [
        (1, [MPS]),
        (2, []),
        (2, ["device.allowMultipleAllocations"]),
        (2, [MPS.replace('"mps"', '"driver"')]),
        (2, [MPS.replace("==", "!=")]),
        (2, ["device.attributes["]),
    ],
)
def test_what_may_go_well_is_not(count: int, selectors: list[str]) -> None:
    assert not [each for each in checked(a_claim(count, *selectors)).findings if each.rule == "shares-together"]
