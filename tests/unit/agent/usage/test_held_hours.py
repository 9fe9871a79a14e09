"""How long devices are held and used, by day: from readings, through restarts and gaps."""

from datetime import UTC, datetime, timedelta

from draco.agent.hardware.nvml_usage import DeviceUse
from draco.agent.record.contents import PreparedClaim
from draco.agent.usage.attribution import attributed
from draco.agent.usage.held_hours import DAYS, LONGEST_S, MOST_A_DAY, HeldHours
from draco.agent.usage.reading import UsageReading
from draco.agent.usage.unused import UnusedDevices
from draco.resources.api.usage import HeldTime
from tests.builders import a_gpu as a_known_gpu
from tests.unit.agent.usage.test_attribution import GPU, a_claim, a_gpu, place
from tests.unit.agent.usage.test_unused import BUSY, with_memory

START = datetime(2026, 11, 30, 12, tzinfo=UTC)
TRAIN = a_claim("train", "a")


class Node:
    def __init__(self) -> None:
        self.unused = UnusedDevices()
        self.hours = HeldHours(self.unused)

    def read(self, after_s: float, *devices: DeviceUse, claims: tuple[PreparedClaim, ...] = (TRAIN,)) -> None:
        gpu = a_known_gpu(0, uuid=GPU, product_name="H100")
        reading = UsageReading(
            at=START + timedelta(seconds=after_s),
            at_s=after_s,
            gpus=(gpu,),
            devices=devices,
            uses=tuple(attributed(devices, {1: place("a")}, claims, {})),
            claims=claims,
        )
        self.unused.read(reading)
        self.hours.read(reading)

    @property
    def told(self) -> list[tuple[str, str, int, int]]:
        return [(one.day, one.namespace, one.held_seconds, one.used_seconds) for one in self.hours.reported()]


def test_time_is_held_and_the_part_with_use_is_used() -> None:
    node = Node()
    for after_s in (0, 15, 30):
        node.read(after_s, a_gpu(BUSY))
    node.read(45, a_gpu())
    assert node.hours.reported() == [
        HeldTime(day="2026-11-30", namespace="team", resource="H100", held_seconds=45, used_seconds=30)
    ]
    node.read(60, a_gpu(), claims=())
    assert node.told == [("2026-11-30", "team", 45, 30)]


def test_a_shared_device_is_held_in_equal_parts_and_each_uses_its_own() -> None:
    claims = (TRAIN, a_claim("other", "b", namespace="other"))
    node = Node()
    node.read(0, a_gpu(BUSY), claims=claims)
    node.read(30, a_gpu(BUSY), claims=claims)
    assert node.told == [("2026-11-30", "other", 15, 0), ("2026-11-30", "team", 15, 15)]


def test_a_share_of_memory_is_held_for_its_part_of_the_memory() -> None:
    claims = (with_memory(TRAIN, "20k"), with_memory(a_claim("other", "b", namespace="other"), "40k"))
    node = Node()
    node.read(0, a_gpu(BUSY), claims=claims)
    node.read(40, a_gpu(BUSY), claims=claims)
    assert node.told == [("2026-11-30", "other", 20, 0), ("2026-11-30", "team", 10, 10)]


def test_a_gap_and_a_gpu_that_cannot_be_read_count_for_nobody() -> None:
    node = Node()
    node.read(0, a_gpu(BUSY))
    node.read(LONGEST_S + 1, a_gpu(BUSY))
    node.read(LONGEST_S + 16)
    assert node.told == []


def test_days_end_at_midnight_utc_and_are_forgotten_after_a_month() -> None:
    node, midnight_s = Node(), 12 * 3600
    node.read(midnight_s - 15, a_gpu())
    node.read(midnight_s - 1, a_gpu())
    node.read(midnight_s + 14, a_gpu())
    assert node.told == [("2026-11-30", "team", 14, 0), ("2026-12-01", "team", 15, 0)]
    late_s = midnight_s + (DAYS - 1) * 86400
    node.read(late_s, a_gpu())
    node.read(late_s + 15, a_gpu())
    assert [day for day, *_ in node.told] == ["2026-12-01", "2026-12-31"]


def test_the_next_agent_goes_on_counting() -> None:
    before, after = Node(), Node()
    before.read(0, a_gpu(BUSY))
    before.read(15, a_gpu(BUSY))
    after.read(100, a_gpu(BUSY))
    after.read(115, a_gpu())
    after.hours.restore(before.hours.reported())
    assert after.told == [("2026-11-30", "team", 30, 15)]


def test_very_many_namespaces_are_counted_together() -> None:
    node = Node()
    for number in range(MOST_A_DAY + 2):
        claims = (a_claim("train", "a", namespace=f"n{number:03}"),)
        node.read(number * 20, a_gpu(), claims=claims)
        node.read(number * 20 + 10, a_gpu(), claims=claims)
    assert len(node.told) == MOST_A_DAY + 1
    assert sum(held for *_, held, _ in node.told) == 10 * (MOST_A_DAY + 2) + 10 * (MOST_A_DAY + 1)
    assert node.told[0][1] == ""
