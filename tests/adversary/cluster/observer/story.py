"""The story of a run: each change of an object in one line.

Owns the wording. Judges nothing.
"""

from datetime import UTC, datetime
from typing import Any

from tests.adversary.cluster.observer.world import Object, name, phase, stamp


def told(kind: str, before: Object | None, after: Object | None) -> str:
    """A change in few words; empty if it is not worth a line."""
    if kind in {"lease", "event", "node", "gpunode", "policy"} or (one := after or before) is None:
        return ""
    brief = _brief(kind, after) if after else "gone"
    if before is not None and after is not None and _brief(kind, before) == brief:
        return ""
    return f"{kind} {name(one)} [{one['metadata'].get('resourceVersion')}] {brief}"


def _brief(kind: str, one: Any) -> str:
    brief = _BRIEF.get(kind)
    return brief(one) if brief else ""


def _claim(one: Any) -> str:
    consumers = ",".join(each["name"] for each in (one.get("status") or {}).get("reservedFor") or [])
    return f"holds {stamp(one) or 'nothing'} for {consumers or 'nobody'}"


def _pod(one: Any) -> str:
    ending = " ending" if one["metadata"].get("deletionTimestamp") else ""
    urgency = f", priority {one['spec']['priority']}" if one["spec"].get("priority") else ""
    return f"{phase(one)} on {one['spec'].get('nodeName', 'no node')}{urgency}{ending}"


def _request(one: Any) -> str:
    status = one.get("status") or {}
    return f"{status.get('phase', 'no phase')} ({status.get('message', '')})"


def _rule(one: Any) -> str:
    return f"{one['spec'].get('deviceSelector')} {one['spec']['taint']}"


def _slice(one: Any) -> str:
    spec = one["spec"]
    tainted = [each["name"] for each in spec.get("devices") or [] if each.get("taints")]
    return f"generation {spec['pool']['generation']}, {len(spec.get('devices') or [])} devices, tainted: {tainted[:4]}"


def _reservation(one: Any) -> str:
    status = one.get("status") or {}
    taking = [f"{each['claim']} takes over {each['reserved']}" for each in status.get("takeovers") or []]
    return "; ".join([f"count {one['spec'].get('count')}", str(status.get("message", "")), *taking])


def _job(one: Any) -> str:
    spec, labels = one["spec"], one["metadata"].get("labels") or {}
    job_set = labels.get("jobset.sigs.k8s.io/jobset-name", "none")
    ended = [each["type"] for each in (one.get("status") or {}).get("conditions") or [] if each["status"] == "True"]
    ending = " ending" if one["metadata"].get("deletionTimestamp") else ""
    suspended = " suspended" if spec.get("suspend") else ""
    size = f"{spec.get('parallelism')} of {spec.get('completions')} pods start together"
    return f"{size}, JobSet {job_set}, {','.join(ended) or 'goes on'}{suspended}{ending}"


def _pod_group(one: Any) -> str:
    gang = (one["spec"].get("schedulingPolicy") or {}).get("gang") or {}
    ending = " ending" if one["metadata"].get("deletionTimestamp") else ""
    return f"{gang.get('minCount', 'none')} of its pods start together{ending}"


_BRIEF = {
    "claim": _claim,
    "pod": _pod,
    "request": _request,
    "rule": _rule,
    "slice": _slice,
    "budget": lambda one: str(one["spec"]),
    "limit": lambda one: str(one["spec"]),
    "pod budget": lambda one: f"{one['spec'].get('minAvailable')} of its pods are to stay",
    "pod group": _pod_group,
    "job": _job,
    "reservation": _reservation,
}


def clock() -> str:
    """The time of a line."""
    return datetime.now(UTC).strftime("%H:%M:%S.%f")[:-3]
