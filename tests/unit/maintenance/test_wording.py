"""Messages of a request: sentences that end once, whatever drivers, users and API servers have contributed."""

from collections.abc import Callable

import msgspec
import pytest

from draco.maintenance import wording
from draco.maintenance.budgets.admission import BudgetLimit
from draco.maintenance.budgets.status import budget_status
from draco.maintenance.progress import FailedJob
from draco.maintenance.selecting.fleet import PhysicalGpu
from draco.resources.api.health import FaultFamily, GpuFaultStatus
from draco.resources.api.maintenance import MaintenanceBudget, MaintenanceBudgetSpec
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.names import NVIDIA_DRIVER, DeviceKey
from draco.resources.texts import sentence
from tests.builders import MOMENT, a_gpu_node, a_maintenance

DEVICE = DeviceKey(NVIDIA_DRIVER, "node-0", "gpu-0")
CLAIMS = [ObjectKey("default", name) for name in "ab"]
GPU = a_gpu_node("node-0", gpus={"gpu-0": "Unhealthy"}).status.gpus[0]
OTHER = DeviceKey(NVIDIA_DRIVER, "node-0", "gpu-1")


def budget_says(number: int, *, paused: bool = False) -> str:
    gpus = [PhysicalGpu(NVIDIA_DRIVER, "node-0", f"gpu-{each}") for each in range(number)]
    spec = MaintenanceBudgetSpec(max_devices=4, paused=paused)
    limit = BudgetLimit(name="all", spec=spec, places=dict.fromkeys(gpus, ""), totals={"": number})
    budget = MaintenanceBudget(metadata=ObjectMeta(name="all"), spec=spec)
    return budget_status(budget, limit, gpus, waiting=0, now=MOMENT, has_class=True).message


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


def test_a_fault_that_nvml_told_only_once_says_what_ends_it() -> None:
    fault = GpuFaultStatus(family=FaultFamily.XID, name="Xid95", message="It is broken")
    ends = "The fault ends with a HealthPolicy's Job that began after it and succeeded, a reset that NVML asked for"
    assert ends not in wording.gpu_faulty(GPU, DEVICE, fault)
    assert f"Xid95: It is broken. {ends}" in wording.gpu_faulty(
        GPU, DEVICE, msgspec.structs.replace(fault, latched=True)
    )


@pytest.mark.parametrize(("text", "is_"), [("a", "a."), ("a.", "a."), ("a. ", "a."), ("a!", "a!"), ("a?", "a?")])
def test_a_sentence_ends_once(text: str, is_: str) -> None:
    assert sentence(text) == is_


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            wording.not_good(["One."]),
            "One. It stays isolated until the fault clears; cancel the request to return it unrepaired.",
        ),
        (
            wording.not_good([wording.gpu_missing(DEVICE, "GPU-1")]),
            "is not reported by its node's agent (a replacement board gets a new name). It stays isolated",
        ),
        (wording.not_good(["One."] * 2), "One. 1 more GPU is not good either. They stay isolated"),
        (wording.not_good(["One."] * 3), "until the faults clear; cancel the request to return them unrepaired."),
        (wording.not_good(["One."] * 3), "2 more GPUs are not good either."),
        (wording.not_over_yet(["One."]), "One. Waiting until the fault is over."),
        (wording.not_over_yet(["One."] * 2), "The same is true of 1 more GPU. Waiting until the faults are over."),
        (wording.not_over_yet(["One."] * 3), "The same is true of 2 more GPUs."),
        (wording.jobs_failed("work", [FailedJob("a")]), "Job a, which did the work, has failed. "),
        (wording.jobs_failed("work", [FailedJob("a")] * 2), "has failed (and 1 more Job)."),
        (wording.jobs_failed("work", [FailedJob("a")] * 3), "has failed (and 2 more Jobs)."),
        (wording.other_gpu({DEVICE: ("a", "b")}), "and is b now. "),
        (wording.other_gpu({DEVICE: ("a", "b"), OTHER: ("b", "a")}), "and is b now (and 1 more device)."),
        (wording.obtainable(a_maintenance(), CLAIMS[:1], 1), "but claim default/a waits for devices and tolerates"),
        (
            wording.obtainable(a_maintenance(), CLAIMS, 1),
            "but claims default/a, default/b wait for devices and tolerate",
        ),
        (wording.giving_back(1, 0, ["node-0"], unseen=0), "waiting for Draco's agent on node-0 to remove the taint."),
        (budget_says(1, paused=True), "and 1 GPU stays out of service."),
        (budget_says(2, paused=True), "and 2 GPUs stay out of service."),
        (budget_says(1), "1 of 1 GPU is out of service."),
        (budget_says(2), "2 of 2 GPUs are out of service."),
    ],
)
def test_sentences_agree_with_their_numbers(text: str, said: str) -> None:
    assert said in text
