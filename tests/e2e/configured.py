"""That a refused configuration never holds a GPU: the API tells of it when a claim is written or waits, not at Prepare.

Owns finding the claims of a test for which that is not so: those that Prepare was refused to, as kubelet says in Events, and
those that are allocated and would be refused, by what the devices' attributes say.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from draco.allocation.configurations import refused
from draco.resources.api.claims import DeviceRequestAllocationResult, ResourceClaim
from draco.resources.names import NVIDIA_DRIVER
from tests.e2e.kubectl import Kubectl

NOT_PREPARED = "FailedPrepareDynamicResources"
"""The reason of kubelet's Events."""
FOR_ITS_CONFIGURATION = re.compile(r"configuration for request \S+ cannot be carried out|Correct it in a new claim\.")
"""In the sentences with which an agent refuses a claim."""


def refused_at_prepare(kube: Kubectl) -> list[str]:
    """What is wrong with the claims of the namespace, a sentence each."""
    said = [
        event.get("note", "")
        for event in kube.objects("events.events.k8s.io")
        if event.get("reason") == NOT_PREPARED and FOR_ITS_CONFIGURATION.search(event.get("note", ""))
    ]
    allocated = [each for each in kube.objects("resourceclaims") if _is_configured(each)]
    attributes = _attributes(kube) if allocated else {}

    def can(result: DeviceRequestAllocationResult, attribute: str) -> bool | None:
        found = attributes.get((result.pool, result.device), {}).get(attribute, {})
        return found.get("bool") if isinstance(found.get("bool"), bool) else None

    judged = (refused(msgspec.convert(each, ResourceClaim), NVIDIA_DRIVER, can) for each in allocated)
    return said + [str(each) for each in judged if each is not None]


def _is_configured(claim: Mapping[str, Any]) -> bool:
    allocation = claim.get("status", {}).get("allocation") or {}
    return bool(allocation.get("devices", {}).get("config"))


def _attributes(kube: Kubectl) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (each["spec"]["pool"]["name"], device["name"]): device.get("attributes", {})
        for each in kube.objects("resourceslices")
        if each["spec"]["driver"] == NVIDIA_DRIVER
        for device in each["spec"].get("devices", [])
    }
