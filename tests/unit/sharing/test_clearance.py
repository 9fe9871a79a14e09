"""When a GPU is cleared for another form, and which clearance counts."""

from collections.abc import Sequence

import pytest

from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.api.taints import DeviceTaint
from draco.sharing.clearance import NOTICE_S, Notice, is_cleared, noticed, withdrawn
from tests.builders import a_device

GOING = DeviceTaint(key="draco.dev/unsettled", value="Withdrawn", effect="NoSchedule")
OTHER = DeviceTaint(key="draco.dev/unsettled", value="Sharing", effect="NoSchedule")


def a_part(name: str, gpu: str, *taints: DeviceTaint) -> Device:
    key = "parentUUID" if "mig" in name else "uuid"
    device = a_device(name, taints=list(taints))
    device.attributes[key] = DeviceAttribute(string=gpu)
    return device


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ([a_part("gpu-0", "a", GOING), a_part("gpu-1", "b")], {"a"}),
        ([a_part("gpu-0", "a", OTHER)], set()),
        ([a_part("gpu-0", "a", GOING), a_part("gpu-0-mig-1", "a")], set()),
        ([a_part("gpu-0-mig-0", "a", OTHER, GOING), a_part("gpu-0-mig-1", "a", GOING)], {"a"}),
        ([a_device("gpu-0", taints=[GOING])], set()),  # nobody knows which GPU it is
    ],
)
def test_a_gpu_is_withdrawn_once_all_its_devices_are(devices: Sequence[Device], found: set[str]) -> None:
    assert withdrawn(devices, "gpu.nvidia.com") == found


def test_a_notice_lasts_while_every_generation_has_it() -> None:
    first = noticed({}, ["a"], 5, 100.0)
    assert first == {"a": Notice(5, 100.0)}
    second = noticed(first, ["a", "b"], 6, 102.0)
    assert second == {"a": Notice(6, 100.0), "b": Notice(6, 102.0)}
    assert noticed(second, ["b"], 7, 103.0) == {"b": Notice(7, 102.0)}
    assert second["a"].due_s == 100.0 + NOTICE_S


def test_a_notice_begins_again_after_a_generation_that_nobody_saw() -> None:
    assert noticed({"a": Notice(5, 100.0)}, ["a"], 7, 109.0) == {"a": Notice(7, 109.0)}


@pytest.mark.parametrize(
    ("shown", "cleared", "is_so"),
    [(None, None, False), (5, None, False), (None, 5, False), (5, 4, False), (5, 5, True)],
)
def test_a_clearance_counts_for_a_taint_that_was_there(shown: int | None, cleared: int | None, *, is_so: bool) -> None:
    assert is_cleared(shown, cleared) is is_so
