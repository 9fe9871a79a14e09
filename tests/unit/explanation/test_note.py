"""The note of an Event: the decisive cause first, then the fix, then counts; nothing is repeated."""

import msgspec
import pytest

from draco.explanation.explain import explain
from draco.explanation.model import Explanation
from draco.resources.api.claims import DeviceConstraint
from draco.resources.api.meta import ObjectMeta
from tests.builders import a_claim, a_pod
from tests.unit.explanation.clusters import ATTRIBUTES, GPU, a_fleet, asking

REFUSED = (
    "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, "
    "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
)


def held(*devices: str) -> list[str]:
    return [f"{GPU}/{device}" for device in devices]


TOO_MANY = explain(a_fleet(), [asking(count=3)], scheduler=REFUSED)
HELD = explain(a_fleet(a_claim("job", on=held("n1/gpu-0", "n1/gpu-1", "n2/gpu-0"))), [asking(count=2)])
MISSPELLED = explain(a_fleet(), [asking(f'{ATTRIBUTES}.productNam == "x"')], scheduler="running a plugin: no such key")


def test_the_cause_comes_first_then_the_fix_then_counts() -> None:
    assert str(TOO_MANY) == (
        "Request gpu wants 3 devices on one node, and no node has more than 2 that it selects. Ask for 2, or use several pods "
        "with a claim each, or add a node with 3 such devices. (4 devices: 4 free)"
    )


@pytest.mark.parametrize("told", [TOO_MANY, HELD, MISSPELLED], ids=lambda told: told.reason)
def test_an_ordinary_note_is_short_and_does_not_quote_the_scheduler(told: Explanation) -> None:
    assert len(str(told)) <= 300
    assert "nodes are available" not in str(told)


def test_devices_that_the_class_does_not_mean_are_not_counted() -> None:
    assert "(4 devices: 3 in use, 1 free)" in str(HELD)
    assert "not selected" not in str(HELD)


def test_they_are_told_where_the_class_means_none_at_all() -> None:
    assert "Selector #0 of class mig: no device has" in str(explain(a_fleet(), [asking(device_class="mig")]))


def test_an_error_is_told_once() -> None:
    assert str(MISSPELLED).count("productNam (") == 1
    assert "no such key" not in str(MISSPELLED)
    assert "productName" in str(MISSPELLED)


def test_bugs_of_the_scheduler_are_told_only_where_it_may_be_wrong() -> None:
    pair = DeviceConstraint(requests=["gpu"], match_attribute=f"{GPU}/productName")
    fits = explain(a_fleet(), [asking(count=2, constraints=[pair])], minor=36)
    short = explain(a_fleet(), [asking(count=3, constraints=[pair])], minor=36)
    assert fits.upstream_bugs
    assert "a bug of this Kubernetes version may matter" in str(fits)
    assert short.upstream_bugs
    assert "bug" not in str(short)


def test_an_explanation_says_whether_it_is_true_of_that_pod_only() -> None:
    """Pods that ask for the same share the text, even if one of them is named like something in it."""
    gpu = msgspec.structs.replace(asking(count=2), metadata=ObjectMeta(name="gpu", namespace="default"))
    job = a_claim("job", on=held("n1/gpu-0", "n1/gpu-1", "n2/gpu-0"))
    shared = explain(a_fleet(job), [gpu], pod=a_pod("gpu", claims=["gpu"]))
    assert "gpu" in str(shared)
    assert not shared.names_subject

    own = a_claim("gpu", on=held("n1/gpu-0", "n1/gpu-1", "n2/gpu-0", "n2/gpu-1"))
    second = explain(a_fleet(own), [own, asking()], pod=a_pod("gpu", claims=["gpu", "c"]))
    assert "in use by default/gpu" in str(second)
    assert second.names_subject

    gated = explain(a_fleet(), [gpu], pod=a_pod("gpu", claims=["gpu"], gates=["example.com/quota"]))
    assert "Pod gpu has the scheduling gate" in str(gated)
    assert gated.names_subject
