"""Notices when the features of the cluster change: a served version went away, a feature gate was switched on.

Owns when to look again and when to believe what is seen. While several API servers are being upgraded they answer differently in
turn, so a change counts once it has been seen several times in a row. What follows from a change is the caller's.
"""

from collections.abc import Awaitable, Callable

import structlog

from draco.kube.clock import Clock
from draco.kube.discovery import Features
from draco.kube.errors import ApiError

log = structlog.get_logger()

_TIMES = 3
"""So often in a row a change has to be seen."""


async def until_changed(
    look: Callable[[], Awaitable[Features]],
    known: Features,
    *,
    clock: Clock,
    every_s: float,
    confirm_s: float,
    hint: Callable[[], bool] = lambda: False,
) -> Features:
    """Return what the cluster can do once that differs from `known`.

    `look` asks it: every `every_s` seconds, every `confirm_s` while there is a `hint` (some kind is not served) or a change to be
    confirmed. No answer, and no Dynamic Resource Allocation at all, is trouble and no change. That DeviceTaintRules are served is
    believed at once: until then what they keep claims off looks free.
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
    """What is known of both and differs, in words."""
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
