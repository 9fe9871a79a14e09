"""What an API server refuses is reported with its place and the valid form."""

from typing import Any

import pytest

from draco.resources.written.limits import refusal, refusals
from draco.resources.written.manifests import decode
from tests.limit_cases import REFUSED, TAKEN

Json = dict[str, Any]
V1 = "resource.k8s.io/v1"
DEVICE = {"name": "gpu-0"}
POOL = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}


def refused(kind: str, spec: Json) -> str:
    return refusal(decode({"apiVersion": V1, "kind": kind, "metadata": {"name": "x"}, "spec": spec}, source="f"))


def refused_slice(**spec: Any) -> str:
    return refused("ResourceSlice", {"driver": "d.example.com", "pool": POOL, "nodeName": "node-0", **spec})


def refused_device(**device: Any) -> str:
    return refused_slice(devices=[DEVICE | device])


def refused_request(**request: Any) -> str:
    return refused("ResourceClaim", {"devices": {"requests": [{"name": "gpu", **request}]}})


def refused_exact(**fields: Any) -> str:
    return refused_request(exactly={"deviceClassName": "gpu", **fields})


def many(count: int) -> list[Json]:
    return [{"name": f"gpu-{number}"} for number in range(count)]


def test_what_is_within_the_limits_is_not_refused() -> None:
    taint = {"key": "a", "effect": "NoSchedule"}
    assert refused_slice(devices=many(128)) == ""
    assert refused_device(attributes={"a": {"version": "1.2.3"}}, taints=[taint]) == ""
    assert refused_exact(count=0, tolerations=[{"operator": "Exists"}]) == ""


@pytest.mark.parametrize(
    ("said", "spec"),
    [
        ("spec.devices has 129 devices, and a slice takes at most 128", {"devices": many(129)}),
        ("at most 64 where any has taints", {"devices": [{**DEVICE, "taints": [{"key": "a", "effect": "None"}]}] * 65}),
        ('spec.devices has 2 devices of the name "gpu-0"', {"devices": [DEVICE, DEVICE]}),
        ('"D_" is not a driver name', {"driver": "D_"}),
        ("exactly one of nodeName, nodeSelector, allNodes", {"allNodes": True}),
        ("but has none of them", {"nodeName": None}),
        ("resourceSliceCount must be at least 1", {"pool": POOL | {"resourceSliceCount": 0}}),
        ("must not have both devices and sharedCounters", {"devices": [DEVICE], "sharedCounters": [{"name": "a"}]}),
        ("spec.sharedCounters has 9 items", {"sharedCounters": many(9)}),
    ],
)
def test_slices(said: str, spec: Json) -> None:
    assert said in refused_slice(**spec)


@pytest.mark.parametrize(
    ("said", "device"),
    [
        ('"GPU 0" is not a device name', {"name": "GPU 0"}),
        ("has 33 attributes and capacities", {"attributes": {f"a{number}": {"int": 1} for number in range(33)}}),
        ("must have exactly one of int, bool", {"attributes": {"a": {}}}),
        ("but has 2", {"attributes": {"a": {"int": 1, "string": "b"}}}),
        ('"1.2" is not a semantic version: write 1.2.0', {"attributes": {"a": {"version": "1.2"}}}),
        ('"580.95.05" is not a semantic version: write 580.95.5', {"attributes": {"a": {"version": "580.95.05"}}}),
        (
            '"6.19.14.31400000" is not a semantic version: write three numbers, such as 1.2.3, or publish it as a string',
            {"attributes": {"a": {"version": "6.19.14.31400000"}}},
        ),
        ("is longer than 64 bytes", {"attributes": {"a": {"string": "x" * 65}}}),
        ("is an empty list", {"attributes": {"a": {"ints": []}}}),
        ("is beyond 64 bits", {"attributes": {"a": {"ints": [2**63]}}}),
        ('effect "Never" is unknown', {"taints": [{"key": "a", "effect": "Never"}]}),
        ('key "no good" is not a label key', {"taints": [{"key": "no good", "effect": "None"}]}),
        ('value "-" is not a label value', {"taints": [{"key": "a", "value": "-", "effect": "None"}]}),
        ("names nodes of its own", {"nodeName": "n"}),
        ("bindingConditions has 5 items", {"bindingConditions": list("abcde")}),
    ],
)
def test_devices(said: str, device: Json) -> None:
    assert said in refused_device(**device)


def test_a_version_that_is_too_long_is_told_once() -> None:
    device = {"name": "gpu-0", "attributes": {"a": {"version": "5" * 65}}}
    spec = {"driver": "d.example.com", "pool": POOL, "nodeName": "node-0", "devices": [device]}
    manifest = {"apiVersion": V1, "kind": "ResourceSlice", "metadata": {"name": "x"}, "spec": spec}
    assert len(list(refusals(decode(manifest, source="f")))) == 1


def test_a_device_says_its_nodes_where_its_slice_leaves_them_to_it() -> None:
    said = "spec.devices[0] must have exactly one of nodeName, nodeSelector, allNodes"
    assert said in refused_slice(nodeName=None, perDeviceNodeSelection=True, devices=[DEVICE])


@pytest.mark.parametrize(
    ("said", "request_"),
    [
        ("has neither exactly nor firstAvailable", {"deviceClassName": "gpu"}),
        ("has both", {"exactly": {"deviceClassName": "a"}, "firstAvailable": [{"name": "a", "deviceClassName": "a"}]}),
        ("has 2 alternatives of the name", {"firstAvailable": [{"name": "a", "deviceClassName": "a"}] * 2}),
        ("firstAvailable has 9 items", {"firstAvailable": [{**each, "deviceClassName": "a"} for each in many(9)]}),
    ],
)
def test_requests(said: str, request_: Json) -> None:
    assert said in refused_request(**request_)


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("deviceClassName is empty", {"deviceClassName": ""}),
        ('allocationMode "Some" is unknown', {"allocationMode": "Some"}),
        ("count must be greater than zero", {"count": -1}),
        ("selectors[0].cel is missing", {"selectors": [{}]}),
        ("longer than 10 KiB", {"selectors": [{"cel": {"expression": "x" * 10241}}]}),
        ("value must be empty where the operator is Exists", {"tolerations": [{"operator": "Exists", "value": "a"}]}),
        ('operator "In" is unknown', {"tolerations": [{"operator": "In", "key": "a"}]}),
    ],
)
def test_exact_requests(said: str, fields: Json) -> None:
    assert said in refused_exact(**fields)


def test_requests_of_one_name_are_refused() -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "a"}}
    assert "has 2 requests of the name" in refused("ResourceClaim", {"devices": {"requests": [request, request]}})


def test_rules_and_classes_are_looked_at_too() -> None:
    assert "key is empty" in refused("DeviceTaintRule", {"taint": {"key": "", "effect": "None"}})
    assert "spec.selectors has 33 items" in refused("DeviceClass", {"selectors": [{"cel": {"expression": "a"}}] * 33})


@pytest.mark.parametrize("name", TAKEN)
def test_what_an_api_server_takes_is_not_refused(name: str) -> None:
    assert refusal(decode(TAKEN[name], source="f")) == ""


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_api_server_refuses_is_told(name: str) -> None:
    item, said = REFUSED[name]
    assert said in refusal(decode(item, source="f"))
