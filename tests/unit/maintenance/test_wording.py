"""What a request says of itself: sentences that end once, whatever drivers, people and API servers have said in them."""

from collections.abc import Callable

import pytest

from draco.maintenance import wording
from draco.maintenance.progress import DrainState, FailedJob, RefusedEviction
from draco.resources.api.health import FaultFamily, GpuFaultStatus
from draco.resources.api.meta import ObjectKey
from draco.resources.names import NVIDIA_DRIVER, DeviceKey
from draco.resources.texts import sentence
from tests.builders import a_gpu_node

DEVICE = DeviceKey(NVIDIA_DRIVER, "node-0", "gpu-0")
GPU = a_gpu_node("node-0", gpus={"gpu-0": "Unhealthy"}).status.gpus[0]
POD = ObjectKey("default", "train")


def faulty(said: str) -> str:
    return wording.gpu_faulty(GPU, DEVICE, GpuFaultStatus(family=FaultFamily.XID, name="Xid79", message=said))


TOLD: dict[str, Callable[[str], str]] = {
    "a fault": faulty,
    "one of several": lambda said: wording.not_good([faulty(said), faulty(said)]),
    "of before the work": lambda said: wording.not_read_yet([faulty(said)]),
    "a Job": lambda said: wording.jobs_failed("work", [FailedJob("reset-0", said)]),
    "what its pod ended with": lambda said: wording.jobs_failed(
        "work", [FailedJob("reset-0", said), FailedJob("reset-1")]
    ),
    "a refused eviction": lambda said: wording.draining(DrainState(refused=(RefusedEviction(POD, reason=said),))),
}


@pytest.mark.parametrize("how", TOLD)
@pytest.mark.parametrize(
    "said", ["", "Drain and reboot the node", "Drain and reboot the node.", "It says so. ", "Why..."]
)
def test_no_text_has_two_full_stops(how: str, said: str) -> None:
    text = TOLD[how](said)
    assert ".." not in text
    assert ". ." not in text
    assert text.endswith(".")


@pytest.mark.parametrize(("text", "is_"), [("a", "a."), ("a.", "a."), ("a. ", "a."), ("a!", "a!"), ("a?", "a?")])
def test_a_sentence_ends_once(text: str, is_: str) -> None:
    assert sentence(text) == is_
