"""The verdict and its counts, small cluster by small cluster."""

from draco.allocation.fleet import Fleet
from draco.explanation.explain import explain
from draco.explanation.model import Cause, Reason
from tests.builders import a_claim, a_device_class, a_node, a_rule, a_slice


def test_every_device_is_counted_once_by_what_stands_in_its_way() -> None:
    fleet = Fleet.of(
        slices=[a_slice("node-0", ["gpu-0", "gpu-1", "gpu-2"])],
        nodes=[a_node("node-0")],
        classes=[a_device_class()],
        claims=[a_claim("train", on=["node-0/gpu-0", "node-0/gpu-1"])],
        rules=[a_rule(driver="gpu.nvidia.com", pool="node-0", device="gpu-2")],
    )

    told = explain(fleet, [a_claim("wait")])

    assert not told.fits
    assert told.reason is Reason.IN_USE
    assert [(count.cause, count.devices) for count in told.requests[0].causes] == [
        (Cause.IN_USE, 2),
        (Cause.TAINTED, 1),
    ]
