"""What a maintenance request says of itself, in sentences.

Owns wording only: what is the case is decided by `plan`.
"""

from collections.abc import Mapping, Sequence

from draco.resources.api.maintenance import DeviceMaintenance
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey
from draco.resources.texts import NAMED, agreeing, are, counted, listed, them


def rules_not_served(devices: Sequence[DeviceKey]) -> str:
    """Devices that only a rule could isolate, in a cluster without rules."""
    number = len(devices)
    return (
        f"No agent of Draco publishes {listed([f'{device.device} of {device.pool}' for device in devices])}, so only a "
        f"DeviceTaintRule could isolate {them(number)}, which this cluster does not serve: enable the feature gate "
        "DRADeviceTaintRules and serve its API (`draco status` says which)."
    )


def isolating(done: int, wanted: int, unheeded: Sequence[DeviceKey] = ()) -> str:
    """How far isolation has come, and which devices agents are still to publish with the taint."""
    waits = f"; waiting for Draco's agent on {_nodes(unheeded)} to publish the taint" if unheeded else ""
    return f"{done} of {_devices(wanted)} {are(done or wanted)} isolated{waits}."


def isolated(number: int, *, by_rules: bool) -> str:
    """All are."""
    how = "its own taint rule" if by_rules else "a taint in its ResourceSlice"
    return f"{_devices(number)} {are(number)} isolated, each by {how}."


def settling(number: int) -> str:
    """No claim holds any, but one may be about to."""
    return f"{_devices(number)} {are(number)} isolated and free; waiting for allocations that were in progress."


def free(number: int, watchers: Sequence[str]) -> str:
    """Work may begin; `watchers` are claims with administrative access."""
    said = f"{_devices(number)} {are(number)} isolated and no claim holds {them(number)}: work can start."
    return f"{said} Only monitoring, with administrative access: {listed(watchers)}." if watchers else said


def in_use(held: Mapping[DeviceKey, list[str]], number: int) -> str:
    """Which are held, and by which claims."""
    examples = [
        f"{device.device} of {device.pool} by {', '.join(names[:NAMED])}" for device, names in sorted(held.items())
    ]
    return f"{len(held)} of {_devices(number)} {are(len(held))} still in use: {listed(examples, separator='; ')}."


def other_gpu(replaced: Mapping[DeviceKey, tuple[str, str]]) -> str:
    """Names that stand for other GPUs now: the UUIDs before and now."""
    device, (before, now) = min(replaced.items())
    more = f" (and {len(replaced) - 1} more)" if len(replaced) > 1 else ""
    return (
        f"{device.device} of {device.pool} was {before} when it was isolated and is {now} now{more}. If you replaced the board, "
        "finish this request; otherwise find the board by its UUID, because the name now means another board."
    )


def taken(device: DeviceKey, request: str) -> str:
    """A device that another request works on."""
    return (
        f"{device.device} of {device.pool} is isolated and free, but is in maintenance for {request}: "
        f"work can start when {request} is finished or deleted."
    )


def obtainable(request: DeviceMaintenance, tolerant: Sequence[ObjectKey], number: int) -> str:
    """Which claims might still be allocated one of the devices."""
    taint, claims = request.spec.taint, listed(tolerant)
    waits, tolerates = agreeing(len(tolerant), "waits", "wait"), agreeing(len(tolerant), "tolerates", "tolerate")
    return (
        f"{_devices(number)} {are(number)} isolated and free, but claim {claims} {waits} for devices and {tolerates} the taint "
        f"{taint.key}:{taint.effect}: delete {them(len(tolerant))}, or set spec.taint.key to one that is not tolerated."
    )


def unheeded(devices: Sequence[DeviceKey], number: int) -> str:
    """Which devices the agents of their nodes have not published with the taint yet."""
    return (
        f"{_devices(number)} {are(number)} isolated and free; waiting for Draco's agent on {_nodes(devices)} to publish "
        f"{listed([device.device for device in devices])} with the taint, so that no new partition appears without it."
    )


def giving_back(number: int, rules: int, informed: Sequence[str]) -> str:
    """The request is finished, and so many rules are left, or these agents are still to drop the taint."""
    left = (
        f"{counted(rules, 'taint rule')} left to delete" if rules else f"the agent on {listed(informed)} is told next"
    )
    return f"Returning {_devices(number)} to service: {left}."


def given_back(number: int) -> str:
    """The request is finished, and no rule is left."""
    were = agreeing(number, "was", "were")
    return f"{_devices(number)} {were} returned to service." if number else "Finished; no device was isolated."


def _nodes(devices: Sequence[DeviceKey]) -> str:
    return listed(sorted({device.pool for device in devices}))


def _devices(number: int) -> str:
    return counted(number, "device")
