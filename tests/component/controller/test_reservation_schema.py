"""What the API server itself refuses in a DeviceReservation, and with which message."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.json import encode as json_of

from draco.kube.connect.client import Client
from draco.kube.errors import ApiError
from draco.reservations.validity import expires_at
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import DEVICE_RESERVATIONS

pytestmark = pytest.mark.usefixtures("crds")

TEMPLATE: dict[str, Any] = {
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "exactly": {
                        "deviceClassName": "gpu.draco.dev",
                        "selectors": [{"cel": {"expression": "true"}}],
                        "tolerations": [{"key": "a", "operator": "Exists"}],
                        "capacity": {"requests": {"memory": "1Gi"}},
                    },
                }
            ],
            "constraints": [{"matchAttribute": "gpu.nvidia.com/pcieRoot"}],
            "config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"any": {"thing": [1]}}}}],
        }
    }
}


ODD_TIMES = [
    ("9999-12-31T23:59:59-14:00", "write a time of the years 1970 to 999"),
    ("0001-01-01T00:00:00+14:00", "write a time of the years 1970 to 999"),
    ("0000-01-01T00:00:00Z", "write a time of the years 1970 to 999"),
    ("2030-01-01T00:00:00+99:99", "should match"),
    ("2030-01-01T00:00:00,5Z", "should match"),
    ("2030-01-01T00:00:00Zt", "should match"),
]
"""Kubernetes accepts them as times; they exceed other programs' calendars, or are in a form that only Go reads."""


async def create(client: Client, namespace: str, spec: dict[str, Any], name: str = "") -> ObjectKey:
    key = ObjectKey(namespace, name or f"reservation-{uuid.uuid4().hex[:8]}")
    await client.create(DEVICE_RESERVATIONS, {"metadata": {"name": key.name, "namespace": namespace}, "spec": spec})
    return key


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "give either template, or templateName"),
        ({"template": TEMPLATE, "templateName": "x"}, "give either template, or templateName"),
        ({"template": TEMPLATE, "count": 0}, "should be greater than or equal to 1"),
        ({"template": TEMPLATE, "count": 257}, "should be less than or equal to 256"),
        (
            {"template": TEMPLATE, "duration": "1h", "expiresAt": "2030-01-01T00:00:00Z"},
            "duration or expiresAt, not both",
        ),
        ({"template": TEMPLATE, "duration": "soon"}, "should match"),
        ({"template": TEMPLATE, "expiresAt": "tomorrow"}, "must be of type date-time"),
        *(({"template": TEMPLATE, "expiresAt": moment}, said) for moment, said in ODD_TIMES),
        ({"template": TEMPLATE, "topology": "samenode"}, "write sameNode, sameNVLinkDomain or spread"),
        ({"template": TEMPLATE, "topology": "two words"}, "should match"),
    ],
)
async def test_what_cannot_be_meant_is_refused(client: Client, namespace: str, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError, match=said):
        await create(client, namespace, spec)


async def test_an_end_that_means_never_is_taken(client: Client, namespace: str) -> None:
    key = await create(client, namespace, {"template": TEMPLATE, "expiresAt": "9999-12-31T23:59:59Z"})
    found = await client.get(DEVICE_RESERVATIONS, key)
    assert expires_at(found) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


async def test_a_name_that_is_no_label_is_refused(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError, match="may not be more than 63"):
        await create(client, namespace, {"template": TEMPLATE}, "a" * 64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"template": {"spec": {"devices": {"constraints": None}}}}, "what a claim asks for cannot be changed"),
        ({"template": None, "templateName": "other"}, "what a claim asks for cannot be changed"),
        ({"topology": "spread"}, "topology cannot be changed"),
    ],
)
async def test_what_a_claim_asks_for_cannot_be_changed(
    client: Client, namespace: str, change: dict[str, Any], said: str
) -> None:
    key = await create(client, namespace, {"template": TEMPLATE, "topology": "sameNode"})
    with pytest.raises(ApiError, match=said):
        await client.patch(DEVICE_RESERVATIONS, key, {"spec": change})


async def test_count_and_end_can_be_changed(client: Client, namespace: str) -> None:
    key = await create(client, namespace, {"template": TEMPLATE, "topology": "topology.kubernetes.io/zone"})
    await client.patch(DEVICE_RESERVATIONS, key, {"spec": {"count": 4, "duration": "2h30m"}})
    await client.patch(DEVICE_RESERVATIONS, key, {"spec": {"duration": None, "expiresAt": "2030-01-01T00:00:00Z"}})
    found = await client.get(DEVICE_RESERVATIONS, key)
    assert (found.spec.count, found.spec.duration) == (4, "")
    assert found.spec.template is not None
    assert found.spec.template.spec.devices.config[0].opaque is not None
    assert found.spec.template.spec.devices.config[0].opaque.parameters == {"any": {"thing": [1]}}


def nested(levels: int, kinds: str) -> Any:
    """JSON nested this many levels deep, of objects ("o") and lists ("l") in turn; the innermost one is empty."""
    value: Any = {} if kinds[(levels - 1) % len(kinds)] == "o" else []
    for level in range(levels - 2, -1, -1):
        value = {"x": value} if kinds[level % len(kinds)] == "o" else [value]
    return value


def with_parameters(parameters: Any) -> dict[str, Any]:
    devices = TEMPLATE["spec"]["devices"]
    config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    return {"template": {"spec": {"devices": devices | {"config": config}}}}


@pytest.mark.parametrize("kinds", ["o", "ol", "olll", "oool"])
async def test_parameters_may_be_any_json_of_eight_levels_and_are_kept_as_they_are(
    client: Client, namespace: str, kinds: str
) -> None:
    parameters = nested(8, kinds) | {
        "texts": ["", "a"],
        "numbers": [1, 1.5, -(2**63)],
        "flags": [True, False],
        "mixed": {"a": [{"b": {"c": [1, "d"]}}]},
        "empty": {},
        "nothing": None,
        "nothings": [None, {"a": None}],
    }
    key = await create(client, namespace, with_parameters(parameters))
    found = await client.get(DEVICE_RESERVATIONS, key)
    assert found.spec.template is not None
    [config] = found.spec.template.spec.devices.config
    assert config.opaque is not None
    assert config.opaque.parameters == parameters
    applied = await client.apply(DEVICE_RESERVATIONS, key, {"spec": with_parameters(parameters)}, manager="somebody")
    assert applied.spec == found.spec


@pytest.mark.parametrize("levels", [10, 11, 100, 4000])
@pytest.mark.parametrize("kinds", ["o", "ol", "oool"])
async def test_parameters_that_are_nested_more_deeply_are_refused(
    client: Client, namespace: str, levels: int, kinds: str
) -> None:
    with pytest.raises(ApiError, match=r"must have at most 0 (items|properties)"):
        await client.connection.request(
            "POST",
            DEVICE_RESERVATIONS.path(namespace=namespace),
            body=json_of(
                {
                    "apiVersion": DEVICE_RESERVATIONS.api_version,
                    "kind": DEVICE_RESERVATIONS.kind,
                    "metadata": {"name": "deep"},
                    "spec": with_parameters("NESTED"),
                }
            ).replace(b'"NESTED"', text_of(levels, kinds)),
        )


def text_of(levels: int, kinds: str) -> bytes:
    """The text of `nested`, built without Python's recursion."""
    opened = [kinds[level % len(kinds)] for level in range(levels)]
    head = "".join('{"x":' if each == "o" else "[" for each in opened[:-1])
    tail = "".join("}" if each == "o" else "]" for each in reversed(opened[:-1]))
    return (head + ("{}" if opened[-1] == "o" else "[]") + tail).encode()
