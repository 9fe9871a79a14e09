"""Turns the command line of `draco maintain start` into a DeviceMaintenance. Pure: `now` is an argument."""

import re
from collections.abc import Collection
from datetime import datetime
from itertools import chain, count
from typing import Final

import msgspec

from draco.cli.input.words import duration, is_name, is_time_of_day
from draco.cli.output import CommandError
from draco.cli.taint.targets import device_of
from draco.cli.writing import manifest
from draco.resources.api.claims import CelSelector, DeviceSelector
from draco.resources.api.maintenance import (
    Approval,
    DeadlineAction,
    DeviceMaintenance,
    DeviceMaintenanceSpec,
    DrainPolicy,
    MaintenanceDeadline,
    MaintenanceDrain,
    MaintenanceSchedule,
    MaintenanceSelector,
    MaintenanceVerification,
    MaintenanceWork,
    VerificationMode,
)
from draco.resources.api.meta import ObjectMeta, TimeWindow, Weekday
from draco.resources.kinds import DEVICE_MAINTENANCES
from draco.resources.names import LONGEST_NAME, DeviceKey
from draco.resources.texts import nearest
from draco.resources.windows import unknown_zones

_ROOM_FOR_NUMBER: Final = 4


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `draco maintain start` as written. `target` is the argument: a name, or POOL/DEVICE."""

    target: str = ""
    node: str = ""
    pool: str = ""
    driver: str = ""
    device: str = ""
    device_class: str = ""
    selector: tuple[str, ...] = ()
    reason: str = ""
    drain: DrainPolicy = DrainPolicy.WAIT
    drain_wait: str = ""
    require_approval: bool = False
    start_at: str = ""
    window: tuple[str, ...] = ()
    deadline: str = ""
    deadline_action: DeadlineAction = DeadlineAction.FAIL
    work: str = ""
    verify: str = ""
    allow_most_of_class: bool = False


def request_of(
    options: StartOptions, published: Collection[DeviceKey], taken: Collection[str], *, now: datetime
) -> DeviceMaintenance:
    """The request that the options describe. `taken` are the names of existing requests. Raises CommandError."""
    selector = _selector(options, published)
    name = options.target if "/" not in options.target else ""
    if name and name in taken:
        raise CommandError(
            f"there is a DeviceMaintenance {name} already (`draco maintain status {name}`): choose another name, or leave it out."
        )
    if name and not is_name(name):
        raise CommandError(
            f"'{name}' cannot be the name of a DeviceMaintenance: use lower-case letters, digits, '-' and '.'. A device is "
            "written as POOL/DEVICE, such as gpu-node-0/gpu-3."
        )
    return DeviceMaintenance(
        metadata=ObjectMeta(name=name or _free_name(selector, taken)),
        spec=DeviceMaintenanceSpec(
            device_selector=selector,
            reason=options.reason,
            approval=Approval.REQUIRED if options.require_approval else Approval.AUTOMATIC,
            allow_most_of_class=options.allow_most_of_class,
            schedule=_schedule(options, now),
            drain=_drain(options),
            deadline=_deadline(options),
            work=MaintenanceWork(from_cron_job=options.work) if options.work else None,
            verification=_verification(options.verify),
        ),
    )


def manifest_of(request: DeviceMaintenance) -> dict[str, object]:
    """The request as a manifest for `kubectl apply`, with only the fields that were set."""
    spec = {name: value for name, value in msgspec.to_builtins(request.spec).items() if value != {}}
    return manifest(DEVICE_MAINTENANCES, request.metadata.key, spec)


def _selector(options: StartOptions, published: Collection[DeviceKey]) -> MaintenanceSelector:
    exact = {"--pool": options.pool, "--device": options.device, "--driver": options.driver}
    if "/" in options.target:
        others = exact | {"--node": options.node, "--class": options.device_class, "--selector": options.selector}
        if given := [name for name, value in others.items() if value]:
            raise CommandError(f"{options.target} names one device already: leave out {' and '.join(given)}.")
        key = device_of(options.target, published)
        return MaintenanceSelector(driver=key.driver, pool=key.pool, device=key.device)
    if not any((*exact.values(), options.node, options.device_class, options.selector)):
        near = nearest(options.target, {f"{key.pool}/{key.device}" for key in published}) if options.target else ""
        raise CommandError(
            f"say which devices{near or ''}: POOL/DEVICE (with most drivers NODE/DEVICE, such as gpu-node-0/gpu-3), or --node, "
            "--pool, --driver, --device, --class or --selector."
        )
    for option, field, known in (
        ("--pool", options.pool, {key.pool for key in published}),
        ("--driver", options.driver, {key.driver for key in published}),
    ):
        if field and field not in known:
            raise CommandError(f"no device is published with {option} {field}{nearest(field, known)}")
    return MaintenanceSelector(
        driver=options.driver or None,
        pool=options.pool or None,
        device=options.device or None,
        node_name=options.node or None,
        device_class_name=options.device_class or None,
        selectors=[DeviceSelector(cel=CelSelector(expression=each)) for each in options.selector],
    )


def _free_name(selector: MaintenanceSelector, taken: Collection[str]) -> str:
    """A name after what is maintained, such as gpu-node-0-gpu-3, with a number if it is taken."""
    words = (selector.node_name, selector.pool, selector.device, selector.device_class_name)
    text = "-".join(word for word in words if word) or selector.driver or "maintenance"
    stem = re.sub(r"[^-a-z0-9.]", "-", text.lower())[: LONGEST_NAME - _ROOM_FOR_NUMBER].strip(".-") or "maintenance"
    return next(name for name in chain([stem], (f"{stem}-{number}" for number in count(2))) if name not in taken)


def _schedule(options: StartOptions, now: datetime) -> MaintenanceSchedule:
    start = None
    if options.start_at:
        try:
            start = datetime.fromisoformat(options.start_at).astimezone()  # without an offset, this machine's time zone
        except ValueError:
            raise CommandError(
                f"'{options.start_at}' is not a time: write --start-at as 2026-12-24T22:00 or 2026-12-24T22:00+01:00."
            ) from None
        if start <= now:
            raise CommandError(f"--start-at {options.start_at} is in the past: leave it out to start now.")
    return MaintenanceSchedule(start=start, windows=[window_of(text) for text in options.window])


def window_of(text: str) -> TimeWindow:
    """Parse [DAYS] HH:MM DURATION [TIMEZONE], such as "Sat,Sun 22:00 4h Europe/Berlin". Raises CommandError."""
    words = text.split()
    form = (
        f"'{text}' is not a window: write '[DAYS] HH:MM DURATION [TIMEZONE]', such as 'Sat,Sun 22:00 4h Europe/Berlin'"
    )
    days: list[Weekday] = []
    if words and not is_time_of_day(words[0]):
        known = {day.value.lower(): day for day in Weekday}
        for day in words.pop(0).split(","):
            if day.lower() not in known:
                raise CommandError(f"{form}. '{day}' is none of {', '.join(Weekday)}.")
            days.append(known[day.lower()])
    if not 2 <= len(words) <= 3 or not is_time_of_day(words[0]):
        raise CommandError(f"{form}.")
    start, lasting, zone = [*words, "UTC"][:3]
    window = TimeWindow(start=start, duration=duration(lasting, "the window's duration"), days=days, time_zone=zone)
    if unknown_zones([window]):
        raise CommandError(f"{form}. There is no time zone '{zone}'.")
    return window


def _drain(options: StartOptions) -> MaintenanceDrain:
    if not options.drain_wait:
        return MaintenanceDrain(policy=options.drain)
    if options.drain is DrainPolicy.WAIT:
        raise CommandError("--drain-wait delays evictions: add --evict.")
    return MaintenanceDrain(policy=options.drain, wait=duration(options.drain_wait, "--drain-wait"))


def _deadline(options: StartOptions) -> MaintenanceDeadline | None:
    if not options.deadline:
        if options.deadline_action is DeadlineAction.CANCEL:
            raise CommandError("--give-up needs a deadline: add one, such as --deadline 4h.")
        return None
    return MaintenanceDeadline(after=duration(options.deadline, "--deadline"), action=options.deadline_action)


def _verification(text: str) -> MaintenanceVerification:
    mode, colon, job = text.partition(":")
    match mode.lower():
        case "":
            return MaintenanceVerification()
        case "agent" if not colon:
            return MaintenanceVerification(mode=VerificationMode.AGENT)
        case "person" if not colon:
            return MaintenanceVerification(mode=VerificationMode.PERSON)
        case "job" if job:
            return MaintenanceVerification(mode=VerificationMode.JOB, from_cron_job=job)
    raise CommandError(
        f"'{text}' does not say who verifies: write agent (Draco's agent checks the GPU), person (who checks it, and then runs "
        "`draco maintain finish`), or job:NAME with the name of a suspended CronJob in the namespace of Draco's Jobs."
    )
