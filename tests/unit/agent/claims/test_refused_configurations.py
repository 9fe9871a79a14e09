"""How e2e tests know that an agent refused a claim for its configuration: by words of its sentence."""

from typing import Any

import pytest

from draco.agent.claims import plan
from draco.agent.errors import PrepareError
from draco.allocation.configurations import GPU_CONFIG, VERSION
from draco.resources.names import NVIDIA_DRIVER
from tests.builders import a_claim, configured
from tests.e2e.configured import FOR_ITS_CONFIGURATION
from tests.unit.agent.claims.test_claims import GPUS


def refusal(can: bool, **sharing: Any) -> str:
    """Why a claim for a GPU with this configuration is refused."""
    parameters = {"apiVersion": VERSION, "kind": GPU_CONFIG, "sharing": sharing}
    claim = configured(a_claim(on=["node-0/gpu-0"]), parameters)
    with pytest.raises(PrepareError) as refused:
        plan.intent_of(claim, driver=NVIDIA_DRIVER, pool="node-0", gpus=GPUS, can=lambda *_: can)
    return str(refused.value)


@pytest.mark.parametrize(
    ("can", "sharing"),
    [
        (True, {"strategy": "Mps"}),
        (False, {"strategy": "MPS"}),
        (False, {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}),
        (True, {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"7": "1Gi"}}}),
    ],
)
def test_every_refusal_for_a_configuration_has_the_words(can: bool, sharing: dict[str, Any]) -> None:
    assert FOR_ITS_CONFIGURATION.search(refusal(can, **sharing))


def test_other_refusals_have_not() -> None:
    with pytest.raises(PrepareError) as refused:
        plan.intent_of(a_claim(on=["node-0/gpu-99"]), driver=NVIDIA_DRIVER, pool="node-0", gpus=GPUS)
    assert not FOR_ITS_CONFIGURATION.search(str(refused.value))
