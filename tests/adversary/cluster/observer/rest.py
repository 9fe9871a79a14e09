"""The law of rest: at rest, each pod runs or has an Event with the true cause of its waiting.

Owns comparing the scheduler's message, the pod's Event and the cluster. The comparison is coarse, because it shares no code with
the Event's writer. Does no I/O.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.adversary.cluster.observer.gates import is_held_back
from tests.adversary.cluster.observer.groups import groups_of, lacks_nothing
from tests.adversary.cluster.observer.laws import BLOCKING
from tests.adversary.cluster.observer.members import LABELS, claims_of, is_pod_group, key_of
from tests.adversary.cluster.observer.suspicion import Suspicion
from tests.adversary.cluster.observer.world import Object, World, condition, name, results, waiting

_REASON = "ClaimPending"
_DRACO_SAYS = "Draco says: "
_NOT_LOOKED_AT = "the scheduler has not looked at it since its last gate went"
_NOT_LOOKED_AT_SINCE = "all its claims have devices, and no Event says why it waits; the scheduler says: "
_FITS = "All claims can be allocated"
_TAINT = re.compile(r"tainted with ([A-Za-z0-9./_-]+?)(?:=[^:\s]*)?:(NoSchedule|NoExecute)")
_HOLDER = re.compile(r"in use by ((?:[a-z0-9.-]+/[a-z0-9.-]+)) ")
_MISSING = re.compile(r'(?:device class|resourceclaim|claim) "?([A-Za-z0-9./-]+)"? (?:does not exist|not found)')
_SHORT_OF_PODS = "waiting for minCount pods"
_START_TOGETHER = "as start together have their devices"
_GROUP = re.compile(
    rf"Draco allocates all of ((?:{'|'.join(['PodGroup', *(each.source for each in LABELS)])}) \S+) or none of it"
)
_XID = 8
"""NVML's event type of an XID. Only the driver knows the board's condition afterwards."""
_OWN_FAULT = re.compile(
    "configuration for request .* cannot be carried out|was allocated a device that takes no new work"
)
"""The agent's error for a claim with an unsupported configuration, or for a GPU with a named fault: claims that tolerate the
taint get such GPUs."""
_NOT_HERE = re.compile(r"was allocated (\S+), which this node does not have")
"""The agent's error for a claim whose board was replaced before it was prepared."""


def unexplained(world: World, states: Mapping[str, Mapping[str, Any]]) -> Iterator[Suspicion]:
    """Every pod that neither runs nor has a right explanation."""
    told = {
        each["regarding"].get("uid"): each
        for each in world.events.values()
        if each.get("regarding") and each.get("reason") == _REASON
    }
    claims = {name(claim): claim for claim in world.claims.values()}
    tainted = _tainted(world)
    for uid, pod in world.pods.items():
        status = pod.get("status") or {}
        if status.get("phase") in {"Running", "Succeeded", "Failed"} and not pod["metadata"].get("deletionTimestamp"):
            continue
        if not pod["spec"].get("resourceClaims"):
            continue
        if wrong := _wrong(world, pod, told.get(uid), claims, tainted, states):
            yield Suspicion("not explained", uid, f"pod {name(pod)}: {wrong}")


def is_said_to_fit(wrong: Suspicion) -> bool:
    """Whether the scheduler refuses or forgot the pod, while Draco says that it fits."""
    return any(each in wrong.text for each in (f"{_DRACO_SAYS}{_FITS}", _NOT_LOOKED_AT, _NOT_LOOKED_AT_SINCE))


def _wrong(
    world: World,
    pod: Object,
    event: Object | None,
    claims: Mapping[str, Object],
    tainted: frozenset[str],
    states: Mapping[str, Mapping[str, Any]],
) -> str:
    """What is wrong about a waiting pod; empty if its explanation is right."""
    node, ending = pod["spec"].get("nodeName"), pod["metadata"].get("deletionTimestamp")
    if node or ending:
        said = waiting(pod)
        if _sick(pod, states) or _OWN_FAULT.search(said) or _was_replaced(world, node, said, states):
            return ""
        return f"on node {node}, it {'is deleted and does not go' if ending else 'does not start'}: {said or 'no word'}"
    return _refused(world, pod, event, claims, tainted)


def _refused(
    world: World, pod: Object, event: Object | None, claims: Mapping[str, Object], tainted: frozenset[str]
) -> str:
    """The same for a pod without a node."""
    scheduled = condition(pod, "PodScheduled")
    note = str((event or {}).get("note") or "")
    if scheduled.get("reason") == "SchedulingGated":
        return _gated(world, pod, note, claims, tainted)
    said = str(scheduled.get("message") or "")
    if scheduled.get("status") != "False":
        return "the scheduler has said nothing of it" if not note else ""
    if "untolerated taint" in said and "cannot allocate" not in said and "claim" not in said:
        return ""  # not about devices
    if not note:
        return _untold(pod, said, claims)
    if (group := _GROUP.search(note)) and group[1] != key_of(pod):
        return f"it is in {key_of(pod) or 'no group'}, but Draco says: {note}"
    return _contradicts(said, note, claims, tainted)


def _untold(pod: Object, said: str, claims: Mapping[str, Object]) -> str:
    """The same for a pod that the scheduler refuses with this message and that has no Event."""
    if not _has_all(pod, claims):
        return f"no Event says why; the scheduler says: {said}"
    # A PodGroup with too few live pods does not start, whatever devices there are.
    return "" if _SHORT_OF_PODS in said else f"{_NOT_LOOKED_AT_SINCE}{said}"


def _gated(world: World, pod: Object, note: str, claims: Mapping[str, Object], tainted: frozenset[str]) -> str:
    """The same for a pod that the scheduler has not considered: it must have Draco's gate while it waits.

    A pod held by another gate needs no explanation from Draco.
    """
    if is_held_back(pod):
        return ""
    if not pod["spec"].get("schedulingGates"):
        return _NOT_LOOKED_AT
    if lacks_nothing(pod, claims):
        if not _is_short_of_pods(world, key_of(pod), claims):
            return "it keeps Draco's gate though it lacks nothing of Draco's"
        return (
            "" if _START_TOGETHER in note else f"its PodGroup is short of pods that could start, but Draco says: {note}"
        )
    return _contradicts("", note, claims, tainted) if note else "no Event says why it keeps Draco's gate"


def _is_short_of_pods(world: World, key: str, claims: Mapping[str, Object]) -> bool:
    """Whether its PodGroup has too few pods with Draco's devices to start."""
    group = next((each for each in groups_of(world) if each.key == key), None) if is_pod_group(key) else None
    return group is not None and sum(lacks_nothing(pod, claims) for pod in group.pods) < group.size


def _has_all(pod: Object, claims: Mapping[str, Object]) -> bool:
    """Whether each of the pod's claims has devices."""
    known = claims_of(pod)
    return len(known) == len(pod["spec"].get("resourceClaims") or []) and all(
        each in claims and results(claims[each]) for each in known
    )


def _tainted(world: World) -> frozenset[str]:
    """Keys of all device taints that keep claims away."""
    return frozenset(
        str(taint.get("key"))
        for device, published in world.published()
        for taint in world.taints(device, published)
        if taint.get("effect") in BLOCKING
    )


def _contradicts(said: str, note: str, claims: Mapping[str, Object], tainted: frozenset[str]) -> str:
    """How Draco's explanation contradicts the scheduler or the cluster; empty if it does not."""
    if note.startswith(_FITS) and "cannot allocate all claims" in said:
        return f"the scheduler says: {said} {_DRACO_SAYS}{note}"
    if (missing := _MISSING.search(said)) and missing[1].rpartition("/")[2] not in note:
        return f"the scheduler misses {missing[1]}, Draco says: {note}"
    for key, _ in _TAINT.findall(note):
        if key not in tainted:
            return f"nothing is tainted {key}, but Draco says: {note}"
    for holder in _HOLDER.findall(note):
        if holder not in claims or not results(claims[holder]):
            return f"claim {holder} holds nothing, but Draco says: {note}"
    return ""


def _was_replaced(world: World, node: str, said: str, states: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the board that the agent reports as missing is really missing."""
    missed = _NOT_HERE.search(said)
    if missed is None or node not in states:
        return False
    there = {gpu["uuid"] for gpu in states[node].get("gpus") or []}
    stood_for = [
        seen[-1][1].gpu
        for device, seen in world.names.history.items()
        if (device.pool, device.device) == (node, missed[1])
    ]
    return bool(stood_for) and there.isdisjoint(stood_for)


def _sick(pod: Object, states: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the node's hardware has a fault and the pod's status says so."""
    state = states.get(pod["spec"].get("nodeName", ""), {})
    broken = any(gpu.get("error") for gpu in state.get("gpus") or []) or (state.get("driver") or {}).get("error")
    told = any(event.get("type") == _XID for event in state.get("events") or [])
    return bool(broken or told or state.get("failures") or state.get("latency_s")) and bool(waiting(pod))
