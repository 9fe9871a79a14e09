"""The command line of `draco maintain start`, and what is said if it makes no sense."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import yaml

from draco.cli.maintain.requests import StartOptions, manifest_of, request_of, window_of
from draco.cli.output import CommandError
from draco.resources.api.maintenance import (
    DeadlineAction,
    DeviceMaintenance,
    DeviceMaintenanceSpec,
    DrainPolicy,
    VerificationMode,
)
from draco.resources.api.meta import TimeWindow, Weekday
from draco.resources.errors import DracoError
from tests.builders import a_device_key

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
GPUS = [a_device_key(f"node-0/gpu-{index}") for index in range(4)]


def meant(*, taken: tuple[str, ...] = (), **options: Any) -> DeviceMaintenance:
    return request_of(StartOptions(**options), GPUS, taken, now=NOW)


def test_a_device_is_named_as_for_draco_taint() -> None:
    request = meant(target="node-0/gpu-3")
    selector = request.spec.device_selector
    assert (selector.driver, selector.pool, selector.device) == GPUS[3]
    assert request.metadata.name == "node-0-gpu-3"


def test_names_are_readable_and_new() -> None:
    assert meant(target="node-0/gpu-3", taken=("node-0-gpu-3", "node-0-gpu-3-2")).metadata.name == "node-0-gpu-3-3"
    assert meant(node="node-0").metadata.name == "node-0"
    assert meant(selector=("true",)).metadata.name == "maintenance"
    assert meant(target="firmware", device_class="H100.big").metadata.name == "firmware"
    assert meant(device_class="h100_big").metadata.name == "h100-big"
    assert len(meant(node="n" * 300).metadata.name) < 253


def test_a_name_that_is_taken_is_refused_and_not_changed() -> None:
    with pytest.raises(CommandError, match="draco maintain status firmware"):
        meant(target="firmware", node="node-0", taken=("firmware",))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "say which devices"),
        ({"target": "firmware"}, "say which devices"),
        ({"target": "node-0/gpu-9"}, "did you mean node-0/gpu-"),
        ({"target": "node-0/gpu-3", "node": "node-0"}, "leave out --node"),
        ({"pool": "node-1"}, "did you mean node-0"),
        ({"driver": "gpu.nvidia.con"}, r"did you mean gpu\.nvidia\.com"),
        ({"target": "Not A Name", "node": "node-0"}, "lower-case letters"),
        ({"target": "a..b", "node": "node-0"}, "lower-case letters"),
        ({"node": "node-0", "drain_wait": "10m"}, "add --evict"),
        ({"node": "node-0", "drain": DrainPolicy.EVICT, "drain_wait": "10 minutes"}, "such as 2h30m"),
        ({"node": "node-0", "deadline": "4"}, "such as 2h30m"),
        ({"node": "node-0", "deadline_action": DeadlineAction.CANCEL}, "such as --deadline 4h"),
        ({"node": "node-0", "start_at": "tomorrow"}, "2026-12-24T22:00"),
        ({"node": "node-0", "start_at": "2026-11-24T11:59:00+00:00"}, "in the past"),
        ({"node": "node-0", "verify": "me"}, "agent .* person .* job:NAME"),
        ({"node": "node-0", "verify": "job:"}, "job:NAME"),
        ({"node": "node-0", "window": ("Sat 25:00 4h",)}, r"\[DAYS\] HH:MM DURATION"),
        ({"node": "node-0", "window": ("Someday 22:00 4h",)}, "'Someday' is none of Mon"),
        ({"node": "node-0", "window": ("22:00 4h Europe/Nowhere",)}, "no time zone 'Europe/Nowhere'"),
        ({"node": "node-0", "window": ("22:00 4h ../etc/passwd",)}, "no time zone"),
        ({"node": "node-0", "window": ("22:00",)}, "HH:MM DURATION"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_write(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DracoError, match=said):
        meant(**options)


def test_a_window_is_written_in_one_line() -> None:
    assert window_of("sat,Sun 22:00 4h Europe/Berlin") == TimeWindow(
        start="22:00", duration="4h", days=[Weekday.SAT, Weekday.SUN], time_zone="Europe/Berlin"
    )
    assert window_of("01:30 45m") == TimeWindow(start="01:30", duration="45m")


def test_the_manifest_holds_what_was_set_and_nothing_else() -> None:
    request = meant(target="node-0/gpu-3", drain=DrainPolicy.EVICT, verify="job:probe", deadline="4h")
    manifest = yaml.safe_load(yaml.safe_dump(manifest_of(request)))
    assert manifest["spec"] == {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "node-0", "device": "gpu-3"},
        "drain": {"policy": "Evict"},
        "deadline": {"after": "4h"},
        "verification": {"mode": "Job", "fromCronJob": "probe"},
    }
    assert msgspec.convert(manifest["spec"], DeviceMaintenanceSpec) == request.spec
    assert request.spec.verification.mode is VerificationMode.JOB


def test_a_time_without_a_zone_is_this_machines() -> None:
    later = datetime.now().astimezone() + timedelta(days=1)
    request = request_of(
        StartOptions(node="node-0", start_at=later.replace(tzinfo=None).isoformat()), GPUS, (), now=datetime.now(UTC)
    )
    assert request.spec.schedule.start == later
