"""Why kube-controller-manager could not create a claim for a pod, as one sentence with the remedy.

Owns parsing its message. Over a ResourceQuota the API server refuses the claim itself, so the message is the only evidence.
"""

import re
from typing import Final

EVENT_REASON: Final = "FailedResourceClaimCreation"
"""Reason of kube-controller-manager's Event on the pod."""
_OVER_QUOTA: Final = re.compile(
    r"exceeded quota: (?P<quota>[^,]+), requested: (?P<requested>[^ ]+), used: (?P<used>[^ ]+), limited: (?P<limited>[^ ]+)"
)
_ENTRY: Final = re.compile(r"PodResourceClaim (?P<entry>[^:]+): (?P<why>.*)", re.DOTALL)
_OF_CLASS: Final = ".deviceclass.resource.k8s.io/devices"
_CLAIMS: Final = "count/resourceclaims.resource.k8s.io"
_REMEDY: Final = "Delete claims that are not needed, or have the quota raised"


def creation_refusal(message: str, namespace: str) -> str | None:
    """The refusal by a quota: cause, then fix. None if no quota was involved."""
    found = _ENTRY.search(message)
    entry, why = (found["entry"], found["why"]) if found else ("", message)
    quota = _OVER_QUOTA.search(why)
    claim = f"the claim for {entry}" if entry else "a claim of the pod"
    if quota is None:
        return None
    used, limited = _amounts(quota["used"]), _amounts(quota["limited"])
    said = [
        _of(resource, used.get(resource, "?"), limited.get(resource, "?"), requested)
        for resource, requested in _amounts(quota["requested"]).items()
    ]
    where = f"ResourceQuota {quota['quota']} of namespace {namespace}"
    return f"{claim} cannot be created: {where} permits {'; and '.join(said)}. {_REMEDY}."


def _of(resource: str, used: str, limited: str, requested: str) -> str:
    if resource == _CLAIMS:
        return f"{limited} ResourceClaims, and there are {used}"
    if resource.endswith(_OF_CLASS):
        device_class = resource.removesuffix(_OF_CLASS)
        return f"{limited} devices of DeviceClass {device_class}, other claims ask for {used}, and this one for {requested}"
    return f"{limited} of {resource}, {used} are used, and the claim takes {requested}"


def _amounts(text: str) -> dict[str, str]:
    """Parse "a=1,b=2"; resource names have neither comma nor equals sign."""
    return {name: amount for name, _, amount in (each.partition("=") for each in text.split(","))}
