"""When a reading of usage is worth a write."""

import pytest

from draco.agent.usage.report import has_moved
from draco.resources.api.usage import DeviceUsage, DeviceUser, GpuUsageStatus

TOTAL = 1000


def said(*, memory: int | None = 500, busy: int | None = 50) -> GpuUsageStatus:
    device = DeviceUsage(uuid="GPU-0", memory_total_bytes=TOTAL, memory_used_bytes=700, utilization_percent=70)
    user = DeviceUser(uuid="GPU-0", pod="a", processes=1, memory_used_bytes=memory, utilization_percent=busy)
    return GpuUsageStatus(devices=[device], users=[user])


@pytest.mark.parametrize(
    ("after", "moved"),
    [
        (said(), False),
        (said(memory=549), False),
        (said(memory=550), True),
        (said(busy=46), False),
        (said(busy=45), True),
        (said(busy=0), True),
        (said(memory=None), True),
    ],
)
def test_figures_that_hardly_move_are_not_written(after: GpuUsageStatus, moved: bool) -> None:
    assert has_moved(said(), after) is moved


def test_the_first_percent_of_an_idle_device_counts() -> None:
    assert has_moved(said(busy=0), said(busy=1))
