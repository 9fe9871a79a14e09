"""Objects as API servers write them."""

import msgspec
import pytest

from draco.kube.connect.client import decode, decode_page, token_of
from draco.resources.kinds import CLAIMS, SLICES

DEVICE = {"driver": "gpu.example.com", "pool": "node-0", "device": "gpu-0"}
ALLOCATED = {
    "metadata": {"name": "idle"},
    "status": {"devices": [{**DEVICE, "conditions": None, "data": {"minor": None}}]},
}
COUNTERS = {
    "metadata": {"name": "counters"},
    "spec": {
        "driver": "gpu.example.com",
        "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 2},
        "sharedCounters": [{"name": "gpu-0", "counters": {"units": {"value": "8"}}}],
        "devices": None,
    },
}


def test_a_list_written_as_null_is_one_that_was_not_set() -> None:
    """A claim that cannot be decoded would count as missing, and its devices as free."""
    [device] = decode(CLAIMS, msgspec.json.encode(ALLOCATED)).status.devices
    assert (device.device, device.conditions) == ("gpu-0", [])
    assert device.data == {"minor": None}
    assert decode(SLICES, msgspec.json.encode(COUNTERS)).spec.devices == []


def test_a_page_with_such_objects_has_them_all() -> None:
    page = decode_page(CLAIMS, msgspec.json.encode({"metadata": {}, "items": [ALLOCATED, {"metadata": {"name": "b"}}]}))
    assert [each.metadata.name for each in page.items] == ["idle", "b"]
    assert page.undecodable == []


def test_what_does_not_fit_without_its_nulls_either_is_named() -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `array`, got `str`"):
        decode(SLICES, msgspec.json.encode({"spec": {**COUNTERS["spec"], "devices": "all"}}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "page",
    [
        b'{"kind":"PodList","metadata":{"continue":"next"},"items":[{"metadata":{"name":"a"}}]}',
        b'{"apiVersion":"draco.dev/v1alpha1","items":[{"metadata":{"continue":"no"}}],"metadata":{"continue":"next"}}',
        b'{"metadata":{"note":",\\"items\\":[","continue":"next"},"items":[]}',
        b'{"metadata":{"continue":"next"},"items":null}',
    ],
    ids=["own kinds", "custom resources", "the word in a text", "no items"],
)
def test_the_continue_token_is_found_wherever_the_server_writes_it(page: bytes) -> None:
    assert token_of(page) == "next"
    assert token_of(page.replace(b'"next"', b'""')) == ""
