"""Turns the command line of `draco reserve` into a DeviceReservation. Pure: `now` is an argument."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from draco.cli.input.words import duration, is_name
from draco.cli.output import CommandError
from draco.resources.names import OPERATOR_DEVICE_CLASS

_LONGEST_NAME: Final = 63
DEFAULT_CLASS: Final = OPERATOR_DEVICE_CLASS


class ReserveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `draco reserve` as written."""

    device_class: str = ""
    selector: tuple[str, ...] = ()
    devices: int = 1
    template: str = ""
    count: int = 1
    topology: str = ""
    priority_class: str = ""
    duration: str = ""
    until: str = ""


def spec_of(name: str, options: ReserveOptions, now: datetime) -> dict[str, Any]:
    """The spec that the options describe. Raises CommandError."""
    if not is_name(name, _LONGEST_NAME):
        raise CommandError(
            f"'{name}' cannot be the name of a reservation: use at most {_LONGEST_NAME} lower-case letters, digits, - and ."
        )
    if options.template and (options.device_class or options.selector or options.devices != 1):
        raise CommandError("--template says what a claim asks for: leave --class, --selector and --devices out.")
    if options.duration and options.until:
        raise CommandError("--for and --until both say when the reservation ends: give one of them.")
    spec: dict[str, Any] = {"count": options.count}
    if options.template:
        spec["templateName"] = options.template
    else:
        spec["template"] = {"spec": {"devices": {"requests": [_request(options)]}}}
    if options.topology:
        spec["topology"] = options.topology
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if options.duration:
        spec["duration"] = duration(options.duration, "--for")
    if options.until:
        spec["expiresAt"] = _time(options.until, now)
    return spec


def _request(options: ReserveOptions) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": options.device_class or DEFAULT_CLASS}
    if options.devices != 1:
        exactly["count"] = options.devices
    if options.selector:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in options.selector]
    return {"name": "gpu", "exactly": exactly}


def _time(text: str, now: datetime) -> str:
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"'{text}' is not a time: write for example 2030-01-31T18:00, or 2030-01-31T18:00Z with a zone."
        ) from None
    end = end.astimezone(UTC)  # without an offset, this machine's time zone
    if end <= now:
        raise CommandError(f"--until {text} is in the past: set a later time.")
    return f"{end:%Y-%m-%dT%H:%M:%SZ}"
