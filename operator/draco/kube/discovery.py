"""Discovers what this cluster supports by asking it.

Owns the questions: which versions are served, and which fields of a ResourceSlice survive a dry-run create (a field whose feature
is off is still in the served schema, and is dropped silently). The server's version only tells which known scheduler bugs may be
present. Also owns when to ask again and when to believe a changed answer: during an upgrade several API servers answer
differently in turn, so a change counts once it was seen several times in a row. Changes nothing in the cluster.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from draco.kube.clock import Clock
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Forbidden, Invalid, NotFound
from draco.resources.api.evictions import EvictionRequest
from draco.resources.api.foreign import read, read_plain
from draco.resources.api.scheduling import PodGroup
from draco.resources.api.taints import DeviceTaintRule
from draco.resources.kinds import EVICTION_REQUESTS, POD_GROUPS, SLICES, TAINT_RULES, Kind
from draco.resources.names import Autoscaler

log = structlog.get_logger()

_PROBE = "draco-dev-feature-probe"
_PROBE_DRIVER = "probe.draco.dev"
_PART = {"name": "probe", "consumesCounters": [{"counterSet": "probe", "counters": {"units": {"value": "1"}}}]}
"""Draws on counters in another slice of its pool, as partitions do. Kubernetes 1.34 wants them in the same slice."""
_NEEDS = "Kubernetes 1.36 or newer has it on by default; on 1.34 and 1.35 enable the feature gate"


PARTITIONABLE = "partitionable devices"


class MissingFeature(msgspec.Struct, frozen=True):
    """A missing feature: the consequence and the remedy, one sentence each."""

    name: str
    consequence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.consequence} {self.remedy}"


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster serves and keeps. None: these credentials may not find out."""

    dra: bool
    """resource.k8s.io/v1 is served."""
    taint_rules: Kind[DeviceTaintRule] | None = None
    """The newest served DeviceTaintRule. Stored even with its feature gate off; only the scheduler's behaviour shows the gate."""
    partitionable_devices: bool | None = None
    """Counters shared by the slices of a pool are kept."""
    binding_conditions: bool | None = None
    """Binding conditions of devices are kept."""
    device_taints: bool | None = None
    """Taints of devices in slices are kept."""
    device_status: bool | None = None
    """Claims have status.devices. Whether it is served is known; that it is kept is known only with binding conditions."""
    eviction_requests: Kind[EvictionRequest] | None = None
    """EvictionRequest, if served and these credentials have the rights for maintenance. Operator only."""
    pod_groups: Kind[PodGroup] | None = None
    """The newest served PodGroup that these credentials may watch. Only for an operator that allocates."""
    autoscaled: bool = False
    """An autoscaler is visible to these credentials. Only for an operator that allocates."""

    @property
    def missing(self) -> list[MissingFeature]:
        """Features that are certainly missing."""
        if not self.dra:
            return [
                MissingFeature(
                    "Dynamic Resource Allocation",
                    "The cluster does not serve resource.k8s.io/v1, so no GPU can be claimed.",
                    "Upgrade to Kubernetes 1.34 or newer.",
                )
            ]
        present = {
            "DeviceTaintRule": self.taint_rules is not None,
            PARTITIONABLE: self.partitionable_devices,
            "device taints": self.device_taints,
            "binding conditions": self.binding_conditions,
            "device status": self.device_status,
        }
        return [missing for missing in _MISSING if present[missing.name] is False]


_MISSING = (
    MissingFeature(
        "DeviceTaintRule",
        "A DeviceMaintenance isolates only devices that Draco's agents publish, by taints in their ResourceSlices, and nothing "
        "keeps new claims off the GPUs of an agent that is lost.",
        "Enable the feature gates DRADeviceTaints and, since Kubernetes 1.35, DRADeviceTaintRules; before 1.37, also serve the "
        "API with the API server's --runtime-config=resource.k8s.io/v1beta2=true (1.34 and 1.35: resource.k8s.io/v1alpha3=true).",
    ),
    MissingFeature(
        PARTITIONABLE,
        "MIG instances are not published before they exist: GPUs can be claimed whole, or divided by MigPolicies in mode Static.",
        "Kubernetes 1.36 or newer has it on by default; on 1.35 enable the feature gate DRAPartitionableDevices.",
    ),
    MissingFeature(
        "device taints",
        "Only withdrawing a broken device keeps it from new claims.",
        f"{_NEEDS} DRADeviceTaints.",
    ),
    MissingFeature(
        "binding conditions",
        "Pods cannot wait for a device to be made ready before they are bound to a node.",
        f"{_NEEDS} DRADeviceBindingConditions.",
    ),
    MissingFeature(
        "device status",
        "Claims do not show the state of their devices.",
        "Enable the feature gate DRAResourceClaimDeviceStatus, which is on by default since Kubernetes 1.33.",
    ),
)


async def discover(client: Client, *, node_name: str = "", driver: str = _PROBE_DRIVER) -> Features:
    """Discover the cluster's features. Raises ApiError if it does not answer.

    `node_name` and `driver` are for an agent that may only write slices of its own node and driver. Without the right to create
    ResourceSlices the features of slices stay unknown.
    """
    served = await _resources(client, SLICES)
    if "resourceslices" not in served:
        return Features(dra=False)
    rules = None
    for kind in TAINT_RULES:
        if kind.plural in await _resources(client, kind):
            rules = kind
            break
    device = {
        "name": "probe",
        "bindingConditions": ["draco.dev/probe"],
        "bindingFailureConditions": ["draco.dev/probe-failed"],
        "taints": [{"key": "draco.dev/probe", "effect": "NoSchedule"}],
    }
    probes = await _may(client, SLICES, "create")
    kept = await _kept(client, node_name, driver, {"devices": [device]}) if probes else None
    kept_device = None if kept is None else next(iter(kept.get("devices") or [{}]))
    binding = None if kept_device is None else bool(kept_device.get("bindingConditions"))
    kept_part = await _kept(client, node_name, driver, {"devices": [_PART]}) if probes else None
    part: dict[str, Any] = next(iter((kept_part or {}).get("devices") or [{}]))
    return Features(
        dra=True,
        taint_rules=rules,
        # Credentials that may ask for the one and not the other are refused by the API's own rules.
        partitionable_devices=None if kept_device is None else bool(part.get("consumesCounters")),
        binding_conditions=binding,
        device_taints=None if kept_device is None else bool(kept_device.get("taints")),
        # The server keeps binding conditions only if it keeps device status too.
        device_status=binding or await _serves_device_status(client),
    )


_EVICTION_REQUEST_VERBS = ("create", "delete", "list", "watch")


async def discover_for_operator(client: Client, *, allocates: bool = False) -> Features:
    """Discover also what only the operator uses; PodGroups and autoscalers if it allocates."""
    features = await discover(client)
    if not features.dra:
        return features
    if allocates:
        pod_groups, autoscaled = await _pod_groups(client), bool(await autoscalers(client))
        features = msgspec.structs.replace(features, pod_groups=pod_groups, autoscaled=autoscaled)
    kind = EVICTION_REQUESTS
    if not await serves(client, kind):
        return features
    permitted = [await _may(client, kind, verb) for verb in _EVICTION_REQUEST_VERBS]
    return msgspec.structs.replace(features, eviction_requests=kind if all(permitted) else None)


async def _pod_groups(client: Client) -> Kind[PodGroup] | None:
    for kind in POD_GROUPS:
        if await serves(client, kind):
            return kind if all([await _may(client, kind, verb) for verb in ("list", "watch")]) else None
    return None


_SIGNS = {
    Autoscaler.KARPENTER: "/apis/karpenter.sh/v1",
    Autoscaler.CLUSTER_AUTOSCALER: "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status",
}
"""Evidence of each autoscaler: its own API, or the status it writes by default."""


async def autoscalers(client: Client) -> list[Autoscaler]:
    """The autoscalers visible to these credentials. Raises ApiError if the cluster does not answer."""
    found = []
    for name, path in _SIGNS.items():
        with suppress(NotFound, Forbidden):
            await client.connection.request("GET", path)
            found.append(name)
    return found


async def serves(client: Client, kind: Kind[Any]) -> bool:
    """Whether the cluster serves this kind. Raises ApiError if it does not answer."""
    return kind.plural in await _resources(client, kind)


async def _resources(client: Client, kind: Kind[Any]) -> set[str]:
    try:
        answer = await client.connection.request("GET", f"/apis/{kind.api_version}")
    except NotFound:
        return set()
    return {resource["name"] for resource in read_plain(answer)["resources"]}


async def _may(client: Client, kind: Kind[Any], verb: str) -> bool:
    """Ask for the right first, to keep refused requests out of the audit log."""
    resource = {"group": kind.group, "resource": kind.plural, "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": resource},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    try:
        answer = await client.connection.request("POST", path, body=msgspec.json.encode(review))
    except (Forbidden, NotFound):
        return True
    return bool(msgspec.json.decode(answer)["status"]["allowed"])


async def _kept(client: Client, node_name: str, driver: str, fields: dict[str, Any]) -> dict[str, Any] | None:
    """The spec of a slice with these fields as the server would store it; None if forbidden."""
    where: dict[str, Any] = {"nodeName": node_name} if node_name else {"allNodes": True}
    pool = {"name": node_name or _PROBE, "generation": 1, "resourceSliceCount": 1}
    manifest = {
        "apiVersion": SLICES.api_version,
        "kind": SLICES.kind,
        "metadata": {"name": _PROBE},
        "spec": {"driver": driver, "pool": pool, **where, **fields},
    }
    try:
        answer = await client.connection.request(
            "POST", SLICES.path(), params={"dryRun": "All"}, body=msgspec.json.encode(manifest)
        )
    except (Forbidden, Invalid):
        # By RBAC, or by an admission policy that restricts these credentials' slices.
        return None
    spec: dict[str, Any] = read_plain(answer)["spec"]
    return spec


async def _serves_device_status(client: Client) -> bool | None:
    try:
        answer = await client.connection.request("GET", f"/openapi/v3/apis/{SLICES.api_version}")
    except ApiError:
        return None
    schemas = read_plain(answer)["components"]["schemas"]
    return "devices" in schemas["io.k8s.api.resource.v1.ResourceClaimStatus"]["properties"]


class _Version(msgspec.Struct):
    major: str = ""
    minor: str = ""


_version_decoder = msgspec.json.Decoder(_Version)


async def kubernetes_minor(client: Client) -> int | None:
    """The minor version of Kubernetes 1; None if it cannot be read."""
    try:
        version = read(_version_decoder, await client.connection.request("GET", "/version"))
    except (ApiError, msgspec.DecodeError):
        return None
    digits = re.match(r"[0-9]+", version.minor)  # some providers write 36+
    return int(digits[0]) if digits and version.major == "1" else None


_TIMES = 3
"""How often in a row a change must be seen."""


async def until_changed(
    look: Callable[[], Awaitable[Features]],
    known: Features,
    *,
    clock: Clock,
    every_s: float,
    confirm_s: float,
    hint: Callable[[], bool] = lambda: False,
) -> Features:
    """Return the cluster's features once they differ from `known`.

    Calls `look` every `every_s` seconds, or every `confirm_s` while there is a `hint` (some kind is not served) or a change to
    confirm. No answer, or no Dynamic Resource Allocation at all, is an outage and no change. Newly served DeviceTaintRules are
    believed immediately: until then devices they taint look free.
    """
    waited_s, seen, times = 0.0, known, 0
    while True:
        await clock.sleep(confirm_s)
        waited_s += confirm_s
        if not times and waited_s < every_s and not hint():
            continue
        waited_s = 0.0
        try:
            now = await look()
        except ApiError as error:
            log.debug("features.unknown", error=str(error))
            continue
        if not now.dra or not differences(known, now):
            times = 0
            continue
        times = times + 1 if now == seen else 1
        seen = now
        if times >= _TIMES or (now.taint_rules and known.taint_rules is None):
            return now


def differences(known: Features, now: Features) -> list[str]:
    """Features known in both that differ, in words."""
    changes = []
    if known.taint_rules != now.taint_rules:
        before, after = (kind.api_version if kind else "no version" for kind in (known.taint_rules, now.taint_rules))
        changes.append(f"DeviceTaintRule is now served in {after} instead of {before}")
    if known.eviction_requests != now.eviction_requests:
        changes.append(f"EvictionRequests may {'now' if now.eviction_requests else 'no longer'} be made")
    if known.pod_groups != now.pod_groups:
        before, after = (kind.api_version if kind else "no version" for kind in (known.pod_groups, now.pod_groups))
        changes.append(f"PodGroup is now read in {after} instead of {before}")
    if known.autoscaled != now.autoscaled:
        changes.append(f"there is {'now' if now.autoscaled else 'no longer'} an autoscaler")
    for field, name in _FIELDS.items():
        before, after = getattr(known, field), getattr(now, field)
        if before is not None and after is not None and before != after:
            changes.append(f"{name} are {'kept' if after else 'no longer kept'}")
    return changes


_FIELDS = {
    "partitionable_devices": "partitionable devices",
    "binding_conditions": "binding conditions",
    "device_taints": "taints of devices",
    "device_status": "reports of devices in claims",
}
