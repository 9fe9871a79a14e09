"""The fields of manifests, by kind.

Owns the tables. Those of resource.k8s.io are complete, and include older versions' fields that other rules correct. For pods,
only fields about claims are reported. Source: k8s.io/api/resource, k8s.io/api/core/v1.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

Schema: TypeAlias = Any
"""A mapping from field to schema; a list with its items' schema; None for any value. `OPEN`, `EACH`, `GONE` are special keys."""
OPEN: Final = "…"
"""In a mapping: other fields exist too; only unknown `WATCHED` fields are reported."""
GONE: Final = "†"
"""In a mapping: its fields that only older versions have; other rules correct them, and nobody is advised to use them."""
EACH: Final = "*"
"""In a mapping: the schema of every field, whatever its name."""
WATCHED: Final = frozenset(
    {
        "claims",
        "resourceClaim",
        "resourceClaims",
        "resourceClaimName",
        "resourceClaimTemplate",
        "resourceClaimTemplateName",
        "resourceClaimTemplates",
    }
)

_METADATA: Final[Schema] = dict.fromkeys(
    (
        "name",
        "generateName",
        "namespace",
        "labels",
        "annotations",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "finalizers",
        "ownerReferences",
        "managedFields",
        "selfLink",
    )
)
_SELECTORS: Final[Schema] = [{"cel": {"expression": None}, "expression": None, GONE: ("expression",)}]
_TOLERATIONS: Final[Schema] = [dict.fromkeys(("key", "operator", "value", "effect", "tolerationSeconds"))]
_WANTED: Final[Schema] = {
    "deviceClassName": None,
    "selectors": _SELECTORS,
    "allocationMode": None,
    "count": None,
    "adminAccess": None,
    "tolerations": _TOLERATIONS,
    "capacity": {"requests": None},
    "derivedAttributes": [{"name": None, "expression": None}],
}
_OPAQUE: Final[Schema] = {"driver": None, "parameters": None}
_DEVICES: Final[Schema] = {
    "requests": [{"name": None, "exactly": _WANTED, "firstAvailable": [{"name": None, **_WANTED}], **_WANTED}],
    "constraints": [{"requests": [None], "matchAttribute": None, "distinctAttribute": None}],
    "config": [{"requests": [None], "opaque": _OPAQUE}],
}
_CLASSIC: Final = ("resourceClassName", "allocationMode", "parametersRef", "controller")
_CLAIM_SPEC: Final[Schema] = {"devices": _DEVICES, **dict.fromkeys(_CLASSIC), GONE: _CLASSIC}
_COUNTERS: Final[Schema] = {EACH: {"value": None}}
_DEVICE: Final[Schema] = {
    "attributes": {EACH: None},
    "capacity": {EACH: None},
    "consumesCounters": [{"counterSet": None, "counters": _COUNTERS, "compatibilityGroups": [None]}],
    "nodeName": None,
    "nodeSelector": None,
    "allNodes": None,
    "taints": [dict.fromkeys(("key", "value", "effect", "timeAdded"))],
    "bindsToNode": None,
    "bindingConditions": [None],
    "bindingFailureConditions": [None],
    "allowMultipleAllocations": None,
    "nodeAllocatableResources": None,
    "nodeAllocatableResourceMappings": None,
}
_TOP: Final[Schema] = {"apiVersion": None, "kind": None, "metadata": _METADATA, "status": None}
_POD_METADATA: Final[Schema] = {OPEN: None}
_CONTAINERS: Final[Schema] = [
    {
        OPEN: None,
        "resources": {
            "limits": {OPEN: None},
            "requests": {OPEN: None},
            "claims": [{"name": None, "request": None}],
        },
    }
]
POD_SPEC: Final[Schema] = {
    OPEN: None,
    "containers": _CONTAINERS,
    "initContainers": _CONTAINERS,
    "resourceClaims": [
        {
            **dict.fromkeys(("name", "resourceClaimName", "resourceClaimTemplateName", "source")),
            GONE: ("source",),
        }
    ],
}
_TEMPLATE: Final[Schema] = {OPEN: None, "metadata": _POD_METADATA, "spec": POD_SPEC}
_WORKLOAD: Final[Schema] = {OPEN: None, "metadata": _POD_METADATA, "spec": {OPEN: None, "template": _TEMPLATE}}

CLAIMS: Final[Mapping[str, Schema]] = MappingProxyType(
    {
        "ResourceClaim": {**_TOP, "spec": _CLAIM_SPEC},
        "ResourceClaimTemplate": {**_TOP, "spec": {"metadata": _METADATA, "spec": _CLAIM_SPEC}},
        "DeviceClass": {
            **_TOP,
            "spec": {
                "selectors": _SELECTORS,
                "config": [{"opaque": _OPAQUE}],
                "extendedResourceName": None,
                "suitableNodes": None,
                GONE: ("suitableNodes",),
            },
        },
        "ResourceSlice": {
            **_TOP,
            "spec": {
                "driver": None,
                "pool": dict.fromkeys(("name", "generation", "resourceSliceCount")),
                **dict.fromkeys(("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")),
                "devices": [{"name": None, "basic": _DEVICE, **_DEVICE, GONE: ("basic",)}],
                "sharedCounters": [{"name": None, "counters": _COUNTERS}],
                "partitionTypeAttribute": None,
                "skipNodeOperations": None,
            },
        },
        "DeviceTaintRule": {
            **_TOP,
            "spec": {
                "deviceSelector": {
                    **dict.fromkeys(("driver", "pool", "device", "deviceClassName", "selectors")),
                    GONE: ("deviceClassName", "selectors"),
                },
                "taint": dict.fromkeys(("key", "value", "effect", "timeAdded")),
            },
        },
    }
)
"""By kind of resource.k8s.io."""
PODS: Final[Mapping[str, Schema]] = MappingProxyType(
    {
        "Pod": {OPEN: None, "metadata": _POD_METADATA, "spec": POD_SPEC},
        "CronJob": {OPEN: None, "spec": {OPEN: None, "jobTemplate": _WORKLOAD}},
        **dict.fromkeys(
            ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"), _WORKLOAD
        ),
    }
)
"""By kind of pod or workload."""
