"""Kopf's events decode to the same objects as lists do."""

from typing import Any

import msgspec
import pytest

from draco.controller.handlers import _read
from draco.kube.connect.client import Undecodable, decode
from draco.kube.watch.watching import Removal, Upsert
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_RESERVATIONS

META = {
    "name": "train",
    "namespace": "team",
    "uid": "uid-1",
    "resourceVersion": "7",
    "creationTimestamp": "2026-01-02T03:04:05Z",
    "labels": None,
}
REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "selectors": None}}
CONFIG = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"sharing": [None, {"timeSlices": 1}]}}}


def reservation(count: object = 2) -> dict[str, Any]:
    devices = {"requests": [REQUEST], "config": [CONFIG]}
    spec = {"count": count, "template": {"spec": {"devices": devices}}, "expiresAt": "2026-02-03T00:00:00Z"}
    return {"apiVersion": "draco.dev/v1alpha1", "kind": "DeviceReservation", "metadata": META, "spec": spec}


@pytest.mark.parametrize("kind", [None, "ADDED", "MODIFIED"])
def test_an_object_is_the_same_as_read_from_a_list(kind: Any) -> None:
    event = _read(DEVICE_RESERVATIONS, {"type": kind, "object": reservation()})  # type: ignore[typeddict-item]
    assert event == Upsert(decode(DEVICE_RESERVATIONS, msgspec.json.encode(reservation())))


def test_one_that_does_not_fit_is_named_and_one_that_is_gone_removed() -> None:
    odd = _read(DEVICE_RESERVATIONS, {"type": "MODIFIED", "object": reservation("two")})  # type: ignore[typeddict-item]
    assert isinstance(odd, Undecodable)
    assert (odd.key, odd.uid, odd.resource_version) == (ObjectKey("team", "train"), "uid-1", "7")
    gone = _read(DEVICE_RESERVATIONS, {"type": "DELETED", "object": reservation("two")})  # type: ignore[typeddict-item]
    assert gone == Removal(ObjectKey("team", "train"))
