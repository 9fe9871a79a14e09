"""What one paragraph says, and what it leaves out."""

from draco.explanation.explain import explain
from draco.resources.claims import DeviceConstraint
from tests.builders import a_claim
from tests.unit.explanation.clusters import ATTRIBUTES, GPU, a_fleet, asking

REFUSED = (
    "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, "
    "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
)


def held(*devices: str) -> list[str]:
    return [f"{GPU}/{device}" for device in devices]


def test_devices_that_the_class_does_not_mean_are_left_out() -> None:
    holder = a_claim("job", on=held("n1/gpu-0", "n1/gpu-1", "n2/gpu-0"))
    told = str(explain(a_fleet(holder), [asking(count=2)]))
    assert f"of 4 devices of class {GPU}, 3 are in use" in told
    assert "not selected" not in told


def test_they_are_told_where_the_class_means_none_at_all() -> None:
    told = str(explain(a_fleet(), [asking(device_class="mig")]))
    assert "not selected by the selector of class mig" in told


def test_free_devices_that_will_not_do_are_not_said_to_be_free_and_no_more() -> None:
    told = str(explain(a_fleet(), [asking(count=3)]))
    assert f"all 4 devices of class {GPU} are free, but no node can give all that is asked for" in told


def test_what_the_scheduler_says_of_preemption_is_left_out() -> None:
    told = str(explain(a_fleet(), [asking(count=3)], scheduler=REFUSED))
    assert "The scheduler says: 0/2 nodes are available: 2 cannot allocate all claims." in told
    assert "reemption" not in told


def test_an_error_that_has_been_told_is_not_told_again() -> None:
    told = str(
        explain(a_fleet(), [asking(f'{ATTRIBUTES}.productNam == "x"')], scheduler="running a plugin: no such key")
    )
    assert told.count("no such key") == 1
    assert "productName" in told


def test_bugs_of_the_scheduler_are_told_only_where_it_may_be_wrong() -> None:
    pair = DeviceConstraint(requests=["gpu"], match_attribute=f"{GPU}/productName")
    fits = explain(a_fleet(), [asking(count=2, constraints=[pair])], minor=36)
    short = explain(a_fleet(), [asking(count=3, constraints=[pair])], minor=36)
    assert fits.upstream_bugs
    assert "has a bug that may matter" in str(fits)
    assert short.upstream_bugs
    assert "bug" not in str(short)
