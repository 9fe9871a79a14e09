"""The table of what Kueue and ResourceQuota count for a claim, as in docs/concepts/allocation.md: one row for each kind."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

BOARD: Final = "gpu.h100.draco.dev"
PROFILE: Final = "mig-1g.10gb.h100.draco.dev"
ANY: Final = "gpu.draco.dev"
ANY_INSTANCE: Final = "mig.draco.dev"
_OF_PROFILE: Final = {"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}


class Row(NamedTuple):
    """What a claim asks for, what Kueue counts for it by name or why it does not admit it, and what ResourceQuota counts."""

    devices: dict[str, Any]
    kueue: dict[str, str] | str
    quota: dict[str, str]


def _request(name: str, device_class: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


_ALTERNATIVES: Final = [
    {"name": "instances", "deviceClassName": PROFILE, "count": 2},
    {"name": "whole", "deviceClassName": BOARD},
]
ROWS: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "two of any board": Row({"requests": [_request("gpu", ANY, count=2)]}, {"gpus.draco": "2"}, {ANY: "2"}),
        "one of a board": Row({"requests": [_request("gpu", BOARD)]}, {"gpus.draco": "1"}, {BOARD: "1"}),
        "an instance of a profile": Row(
            {"requests": [_request("gpu", PROFILE)]}, {"mig-1g.draco": "1"}, {PROFILE: "1"}
        ),
        "two classes of one name": Row(
            {"requests": [_request("a", ANY), _request("b", BOARD)]}, {"gpus.draco": "2"}, {ANY: "1", BOARD: "1"}
        ),
        "a selector for the profile": Row(
            {"requests": [_request("gpu", ANY_INSTANCE, selectors=[_OF_PROFILE])]},
            "CEL selectors are not supported",
            {ANY_INSTANCE: "1"},
        ),
        "alternatives": Row(
            {"requests": [{"name": "gpu", "firstAvailable": _ALTERNATIVES}]},
            "FirstAvailable device selection is not supported",
            {PROFILE: "2", BOARD: "1"},
        ),
        "all of a node": Row(
            {"requests": [_request("gpu", BOARD, allocationMode="All")]},
            "AllocationMode 'All' is not supported",
            {BOARD: "32"},
        ),
        "constraints": Row(
            {
                "requests": [_request("gpu", BOARD, count=2)],
                "constraints": [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}],
            },
            "device constraints (MatchAttribute) are not supported",
            {BOARD: "2"},
        ),
        "opaque configuration": Row(
            {
                "requests": [_request("gpu", BOARD)],
                "config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}],
            },
            "device config is not supported",
            {BOARD: "1"},
        ),
        "administrative access": Row(
            {"requests": [_request("gpu", BOARD, adminAccess=True)]}, "AdminAccess is not supported", {BOARD: "1"}
        ),
        "a class that is mapped to nothing": Row(
            {"requests": [_request("gpu", "mig-2g.20gb.h100.draco.dev")]},
            "DeviceClass mig-2g.20gb.h100.draco.dev is not mapped",
            {"mig-2g.20gb.h100.draco.dev": "1"},
        ),
    }
)


def looking_on(namespace: str) -> dict[str, Any]:
    """The namespace, labelled so that its claims may ask for administrative access."""
    labels = {"resource.kubernetes.io/admin-access": "true"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
