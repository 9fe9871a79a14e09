"""The messages of a maintenance request. Owns wording only; `plan` decides what is true."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from draco.maintenance.progress import FailedJob, JobsState
from draco.resources.api.draco import GpuStatus
from draco.resources.api.health import GpuFaultStatus
from draco.resources.api.maintenance import DeviceMaintenance, MaintenancePhase, MaintenanceSelector
from draco.resources.api.meta import ObjectKey
from draco.resources.names import DeviceKey, PoolKey
from draco.resources.texts import NAMED, agreeing, are, counted, listed, others, sentence, them

NOT_ISOLATED: Final = "Not every device is isolated yet."
WORKED: Final = "The Jobs that do the work have succeeded."
VERIFYING: Final = "The work is done; the devices return to service when they are verified."
NO_VERIFICATION: Final = "No Job verifies the devices: name a suspended CronJob in spec.verification.fromCronJob."


def no_devices(selector: MaintenanceSelector) -> str:
    """Nothing matches the selector."""
    fields = {
        "driver": selector.driver,
        "pool": selector.pool,
        "device": selector.device,
        "node": selector.node_name,
        "class": selector.device_class_name,
    }
    asked = [f"{field} {value}" for field, value in fields.items() if value]
    asked += [counted(len(selector.selectors), "CEL selector")] if selector.selectors else []
    compare = "compare the names with `kubectl get resourceslices -o yaml`"
    return f"No published device matches {', '.join(asked)}; {compare}."


def incomplete(pools: Sequence[PoolKey]) -> str:
    """Drivers are replacing slices, so not all devices are known."""
    return (
        f"Not all ResourceSlices of {listed([f'pool {pool.pool} ({pool.driver})' for pool in pools])} are published; "
        "this continues when they are. If that takes long, look at the driver's pods."
    )


def only_announced(effect: str) -> str:
    """The taint keeps nobody off."""
    return (
        f"The taint's effect is {effect}, so new claims may still take the devices; "
        "set spec.taint.effect to NoSchedule to isolate them."
    )


def not_approved(request: DeviceMaintenance) -> str:
    """A person has to approve the request."""
    return f"Waiting for approval: look at the rehearsal, then `draco maintain approve {request.metadata.name}`."


def not_yet(at: datetime | None) -> str:
    """The schedule's start is in the future."""
    if at is None:
        return "No window of spec.schedule.windows ever opens, so this never starts: give days, a start and a duration."
    return f"Scheduled: starts at {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC."


def deadline_passed(request: DeviceMaintenance, why: str) -> str:
    """The devices were not free by the deadline."""
    after = request.spec.deadline.after if request.spec.deadline else ""
    return f"Not free within {after} of being isolated, and still isolated: cancel this request, or free the devices. {why}"


def jobs_failed(what: str, failed: Sequence[FailedJob]) -> str:
    """Jobs that were to work on devices, or to verify them, have failed."""
    first = failed[0]
    verb = "did the work" if what == "work" else "verifies the devices"
    said = f" {sentence(first.reason)}" if first.reason else ""
    more = others(len(failed) - 1, "Job")
    return f"Job {first.name}, which {verb}, has failed{more}.{said} Delete it to try again, or cancel this request."


def verifying(jobs: JobsState) -> str:
    """Jobs are verifying the devices."""
    return f"{len(jobs.succeeded)} of {counted(jobs.wanted, 'Job')} {are(len(jobs.succeeded) or jobs.wanted)} done verifying."


def stopping(jobs: Sequence[str]) -> str:
    """Jobs still run."""
    return f"Stopping {counted(len(jobs), 'Job')} before the devices return to service: {listed(jobs)}."


def not_good(bad: Sequence[str]) -> str:
    """Agents report devices as not healthy."""
    rest = len(bad) - 1
    more = f" {counted(rest, 'more GPU')} {are(rest)} not good either." if rest else ""
    stays = agreeing(len(bad), "It stays", "They stay")
    what = agreeing(len(bad), "the fault clears", "the faults clear")
    return f"{bad[0]}{more} {stays} isolated until {what}; cancel the request to return {them(len(bad))} unrepaired."


def not_read_yet(bad: Sequence[str]) -> str:
    """The agents' reports may be older than the end of the work."""
    return f"Waiting for a reading of the GPUs after the work. The last report says: {bad[0]}"


def not_over_yet(ending: Sequence[str]) -> str:
    """Some readings were free of the faults, and more are needed."""
    rest = len(ending) - 1
    more = f" The same is true of {counted(rest, 'more GPU')}." if rest else ""
    return f"{ending[0]}{more} Waiting until {agreeing(len(ending), 'the fault is', 'the faults are')} over."


def silent(nodes: Sequence[str]) -> str:
    """Agents report nothing."""
    return (
        f"Waiting for Draco's agent on {listed(nodes)} to report the devices as healthy; "
        "cancel this request to return them unverified."
    )


_NOT_SEEN_TO_END: Final = (
    "The fault ends with a HealthPolicy's Job that began after it and succeeded, a reset that NVML asked for (drivers before "
    "565 ask for none), a driver reload, or, for some faults, only a reboot; none has been seen."
)


def gpu_missing(device: DeviceKey, uuid: str) -> str:
    """The agent does not see the GPU."""
    return (
        f"GPU {device.device} of {device.pool}{f' ({uuid})' if uuid else ''} is not reported by its node's agent "
        "(a replacement board gets a new name)."
    )


def gpu_faulty(gpu: GpuStatus, device: DeviceKey, fault: GpuFaultStatus) -> str:
    """The agent reports a fault. One that NVML reported once ends with an observed cause, not with the end of the work."""
    said = f"GPU {gpu.device} of {device.pool} still has the fault {fault.name}{f': {fault.message}' if fault.message else ''}"
    return sentence(said) + (f" {_NOT_SEEN_TO_END}" if fault.latched else "")


def gpu_recovering(gpu: GpuStatus, device: DeviceKey, fault: GpuFaultStatus) -> str:
    """The agent has read the GPU without the fault, but not often enough."""
    readings = counted(fault.clean_probes, "reading")
    return f"GPU {gpu.device} of {device.pool} has had {readings} without the fault {fault.name}."


def gpu_unhealthy(gpu: GpuStatus, device: DeviceKey) -> str:
    """The agent does not report the GPU as healthy."""
    why = f": {gpu.message}" if gpu.message else ""
    return sentence(f"GPU {gpu.device} of {device.pool} is reported as {gpu.health}{why}")


def over(phase: MaintenancePhase) -> str:
    """No work may start any more."""
    return "The request is finished." if phase is MaintenancePhase.COMPLETED else "The request is cancelled."


def cancelled(number: int, *, by_request: bool) -> str:
    """Everything was returned before the work was done."""
    why = "Cancelled" if by_request else "Cancelled, because the devices were not free by spec.deadline"
    return (
        f"{why}; {_devices(number)} {agreeing(number, 'was', 'were')} returned to service."
        if number
        else f"{why}; no device was isolated."
    )


def rules_not_served(devices: Sequence[DeviceKey]) -> str:
    """Only a rule could isolate these devices, and the cluster serves none."""
    number = len(devices)
    return (
        f"No agent of Draco publishes {listed([f'{device.device} of {device.pool}' for device in devices])}, so only a "
        f"DeviceTaintRule could isolate {them(number)}, which this cluster does not serve: enable the feature gate "
        "DRADeviceTaintRules (DRADeviceTaints on Kubernetes 1.34) and serve its API (`draco status` says which)."
    )


def isolating(done: int, wanted: int, unheeded: Sequence[DeviceKey] = ()) -> str:
    """How many are isolated, and which devices agents have yet to publish with the taint."""
    waits = f"; waiting for Draco's agent on {_nodes(unheeded)} to publish the taint" if unheeded else ""
    return f"{done} of {_devices(wanted)} {are(done or wanted)} isolated{waits}."


def isolated(number: int, *, by_rules: bool) -> str:
    """All are isolated."""
    how = "its own taint rule" if by_rules else "a taint in its ResourceSlice"
    return f"{_devices(number)} {are(number)} isolated, each by {how}."


def settling(number: int) -> str:
    """No claim holds any, but an allocation may be in flight."""
    return f"{_devices(number)} {are(number)} isolated and free; waiting for allocations that were in progress."


def free(number: int, watchers: Sequence[str]) -> str:
    """Work may start; `watchers` are claims with administrative access."""
    said = f"{_devices(number)} {are(number)} isolated and no claim holds {them(number)}: work can start."
    return f"{said} Only monitoring, with administrative access: {listed(watchers)}." if watchers else said


def not_published(devices: Sequence[DeviceKey], number: int) -> str:
    """Work may start or continue although the driver does not publish the devices: removed, or node or driver down."""
    names = listed([f"{device.device} of {device.pool}" for device in devices])
    back = agreeing(len(devices), "stays isolated when it comes", "stay isolated when they come")
    return f"{free(number, ())} {names} {are(len(devices))} not published now, and {back} back."


def in_use(held: Mapping[DeviceKey, list[str]], number: int) -> str:
    """Which devices are held, and by which claims."""
    examples = [
        f"{device.device} of {device.pool} by {', '.join(names[:NAMED])}" for device, names in sorted(held.items())
    ]
    return f"{len(held)} of {_devices(number)} {are(len(held))} still in use: {listed(examples, separator='; ')}."


def replaced(boards: Mapping[DeviceKey, tuple[str, str]]) -> str:
    """Appended to `given_back`: devices that are another board than was isolated; "" without any."""
    if not boards:
        return ""
    device, (before, now) = min(boards.items())
    more = others(len(boards) - 1, "device")
    return f" {device.device} of {device.pool} is another board now: it was {before} when it was isolated and is {now}{more}."


def other_gpu(replaced: Mapping[DeviceKey, tuple[str, str]]) -> str:
    """Names that now stand for other GPUs, with both UUIDs."""
    device, (before, now) = min(replaced.items())
    more = others(len(replaced) - 1, "device")
    return (
        f"{device.device} of {device.pool} was {before} when it was isolated and is {now} now{more}. If you replaced the board, "
        "finish this request; otherwise find the board by its UUID, because the name now means another board."
    )


def taken(device: DeviceKey, request: str) -> str:
    """Another request works on the device."""
    return (
        f"{device.device} of {device.pool} is isolated and free, but is in maintenance for {request}: "
        f"work can start when {request} is finished or deleted."
    )


def obtainable(request: DeviceMaintenance, tolerant: Sequence[ObjectKey], number: int) -> str:
    """Pending claims that could still be allocated one of the devices."""
    taint, claims = request.spec.taint, f"{agreeing(len(tolerant), 'claim', 'claims')} {listed(tolerant)}"
    waits, tolerates = agreeing(len(tolerant), "waits", "wait"), agreeing(len(tolerant), "tolerates", "tolerate")
    return (
        f"{_devices(number)} {are(number)} isolated and free, but {claims} {waits} for devices and {tolerates} the taint "
        f"{taint.key}:{taint.effect}: delete {them(len(tolerant))}, or set spec.taint.key to one that is not tolerated."
    )


def unheeded(devices: Sequence[DeviceKey], number: int) -> str:
    """Devices that agents have not published with the taint yet."""
    return (
        f"{_devices(number)} {are(number)} isolated and free; waiting for Draco's agent on {_nodes(devices)} to publish "
        f"{listed([device.device for device in devices])} with the taint, so that no new partition appears without it."
    )


def giving_back(number: int, rules: int, informed: Sequence[str], *, unseen: int) -> str:
    """The request is finished; `rules` are left, or the agents of `informed` have yet to drop the taint.

    `unseen` rules may be left: the API server does not serve them now.
    """
    if rules:
        left = f"{counted(rules, 'taint rule')} left to delete"
    elif informed:
        left = f"waiting for Draco's agent on {listed(informed)} to remove the taint"
    else:
        left = (
            f"{counted(unseen, 'taint rule')} may be left, and the API server does not serve DeviceTaintRule now. "
            "Have it served again, or delete this request"
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
