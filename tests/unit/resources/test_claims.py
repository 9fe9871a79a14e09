"""Claims as API servers write them."""

import msgspec

from draco.resources.claims import ResourceClaim


def test_a_driver_that_reports_no_conditions_does_not_hide_the_claim() -> None:
    """API servers write null there; a claim that cannot be read would count as not there, and its devices as free."""
    device = {
        "driver": "gpu.example.com",
        "pool": "node-0",
        "device": "gpu-0",
        "conditions": None,
        "data": {"minor": 0},
    }
    claim = msgspec.convert({"metadata": {"name": "idle"}, "status": {"devices": [device]}}, ResourceClaim)
    assert [each.device for each in claim.status.devices] == ["gpu-0"]
