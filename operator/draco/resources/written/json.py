"""Objects as Kubernetes itself writes them in JSON.

Owns where that differs from the structs' own encoding: a field that the API server always fills in is always written there,
while a struct leaves out what has its default.
"""

from typing import Any

import msgspec

from draco.resources.api.claims import AllocationResult


def written(result: AllocationResult) -> dict[str, Any]:
    """Write an allocation as kube-scheduler would write it into the claim's status."""
    plain: dict[str, Any] = msgspec.to_builtins(result)
    devices = plain.setdefault("devices", {})
    for device in devices.get("results", ()):
        for toleration in device.get("tolerations", ()):
            toleration.setdefault("operator", "Equal")
    for config in devices.get("config", ()):
        config.setdefault("source", "")
        if "opaque" in config:
            config["opaque"].setdefault("parameters", None)
    return plain
