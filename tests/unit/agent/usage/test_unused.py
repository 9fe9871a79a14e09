"""Since when a claim's device is unused: from readings, through restarts and gaps."""

from datetime import UTC, datetime, timedelta

import msgspec

from draco.agent.hardware.gpus import Instance
from draco.agent.hardware.nvml_usage import DeviceUse, ProcessUse
from draco.agent.mig.users import HeldDevice
from draco.agent.record.contents import PreparedClaim
from draco.agent.usage.attribution import ProcessPlace, attributed
from draco.agent.usage.claim_conditions import UsageConditions
from draco.agent.usage.findings import UsageFindings
from draco.agent.usage.reading import UsageReading
from draco.resources.api.usage import GpuUsageStatus
from draco.resources.names import CONDITION_MEMORY_EXCEEDED, CONDITION_UNUSED
from tests.builders import a_gpu as a_known_gpu
from tests.unit.agent.usage.test_attribution import GPU, MIG, a_claim, a_gpu, place

START = datetime(2026, 11, 30, 12, tzinfo=UTC)
TRAIN = a_claim("train", "a")
HELD = HeldDevice(TRAIN.uid, GPU)
BUSY, QUIET = ProcessUse(1, 10, 20), ProcessUse(1, 10, 0)
AFTER_S = 7200.0


class Node:
    """A node's unused devices, and the claims that were reported as changed."""

    def __init__(self, *, after_s: float = AFTER_S) -> None:
        self.changed: list[str] = []
        self.findings = UsageFindings()
        self.unused = self.findings.unused
        self.conditions = UsageConditions(
            self.findings, after_s=after_s, changed=lambda claim: self.changed.append(claim.name)
        )

    def pause(self, from_s: float, until_s: float, *devices: DeviceUse) -> None:
        """Readings every five minutes, all with the same result."""
        for after_s in range(int(from_s), int(until_s), 300):
            self.read(after_s, *devices)

    def read(
        self,
        after_s: float,
        *devices: DeviceUse,
        claims: tuple[PreparedClaim, ...] = (TRAIN,),
        places: dict[int, ProcessPlace] | None = None,
    ) -> UsageReading:
        at = START + timedelta(seconds=after_s)
        uses = attributed(devices, {1: place("a")} if places is None else places, claims, {})
        reading = UsageReading(
            at=at, at_s=after_s, gpus=(a_known_gpu(0, uuid=GPU),), devices=devices, uses=tuple(uses), claims=claims
        )
        self.findings.read(reading)
        self.conditions.read(reading)
        return reading

    @property
    def said(self) -> dict[HeldDevice, list[str]] | None:
        known = self.conditions.known
        return None if known is None else {one: [each.type for each in said] for one, said in known.items()}

    def since_s(self, held: HeldDevice = HELD) -> float | None:
        found = self.unused.since.get(held)
        return None if found is None else (found - START).total_seconds()


def test_a_device_is_unused_since_the_first_reading_without_use() -> None:
    node = Node()
    node.read(0, a_gpu(BUSY))
    assert node.since_s() is None
    node.read(15, a_gpu(QUIET))
    node.read(30, a_gpu())
    assert node.since_s() == 15, "a process that only waits, and none at all, are the same"
    node.read(45, a_gpu(BUSY))
    assert node.since_s() is None


def test_a_claim_is_told_when_it_is_unused_for_long_and_when_it_no_longer_is() -> None:
    node = Node()
    node.read(0, a_gpu())
    node.changed.clear()
    node.pause(300, AFTER_S, a_gpu())
    node.read(AFTER_S - 1, a_gpu())
    assert (node.said, node.changed) == ({}, [])
    node.read(AFTER_S, a_gpu())
    assert (node.said, node.changed) == ({HELD: [CONDITION_UNUSED]}, ["train"])
    node.read(AFTER_S + 15, a_gpu())
    node.read(AFTER_S + 30, a_gpu(BUSY))
    assert (node.said, node.changed) == ({}, ["train", "train"])


def test_without_a_time_nothing_is_reported() -> None:
    node = Node(after_s=0)
    node.pause(0, 10 * AFTER_S, a_gpu())
    assert node.said == {}


def test_of_a_mig_device_a_process_is_use() -> None:
    instance = Instance(gpu=GPU, gi=1, profile_id=19, start=0, size=1, ci=0, uuid=MIG)
    claim = a_claim("train", "a", part=MIG)
    held = HeldDevice(claim.uid, MIG)
    node = Node()
    node.read(0, DeviceUse(gpu=GPU, instance=instance, processes=(ProcessUse(1, 10, None),)), claims=(claim,))
    assert node.since_s(held) is None
    node.read(15, DeviceUse(gpu=GPU, instance=instance), claims=(claim,))
    assert node.since_s(held) == 15


def test_of_a_mig_device_whose_load_is_told_a_process_that_waits_is_no_use() -> None:
    instance = Instance(gpu=GPU, gi=1, profile_id=19, start=0, size=1, ci=0, uuid=MIG)
    claim = a_claim("train", "a", part=MIG)
    held = HeldDevice(claim.uid, MIG)
    node = Node()

    def read(after_s: float, load: int | None, *processes: ProcessUse) -> float | None:
        node.read(
            after_s, DeviceUse(gpu=GPU, instance=instance, utilization=load, processes=processes), claims=(claim,)
        )
        return node.since_s(held)

    waits = ProcessUse(1, 10, None)
    assert read(0, 40, waits) is None
    assert read(15, 0, waits) == 15
    assert read(30, None, waits) is None, "unknown is not unused"
    assert read(45, 0) == 45
    assert read(60, 3) is None, "by a process that is not listed"


def test_a_busy_process_of_nobody_may_be_the_claims() -> None:
    node = Node()
    node.read(0, a_gpu(BUSY), places={})
    assert node.since_s() is None
    node.read(15, a_gpu(QUIET), places={})
    assert node.since_s() == 15, "an idle one, such as a display server, uses nothing"


def test_one_claims_work_is_not_anothers() -> None:
    other = a_claim("other", "b")
    node = Node()
    node.read(0, a_gpu(BUSY), claims=(TRAIN, other))
    assert (node.since_s(), node.since_s(HeldDevice(other.uid, GPU))) == (None, 0)


def test_a_gpu_that_cannot_be_read_stays_as_it_was() -> None:
    node = Node()
    node.read(0)
    assert node.since_s() is None, "nothing is known of it"
    node.read(15, a_gpu())
    node.read(30)
    assert node.since_s() == 15
    node.read(15 + 900)
    node.read(15 + 901, a_gpu())
    assert node.since_s() == 15 + 901, "it may have been used in so long a gap"


def test_a_gap_between_readings_may_have_been_use() -> None:
    node = Node()
    node.read(0, a_gpu())
    node.read(900, a_gpu())
    assert node.since_s() == 0
    node.read(900)
    node.read(1801)
    assert node.since_s() is None
    node.read(1802, a_gpu())
    node.read(2703, a_gpu())
    assert node.since_s() == 2703


def test_a_claim_that_is_gone_is_forgotten_and_an_administrators_uses_nothing() -> None:
    admin = a_claim("monitor", "m")
    admin = msgspec.structs.replace(admin, devices=[msgspec.structs.replace(admin.devices[0], admin=True)])
    node = Node()
    node.read(0, a_gpu(), claims=(TRAIN, admin))
    assert [*node.unused.since] == [HELD]
    node.read(15, a_gpu(), claims=())
    assert [*node.unused.since] == []


def test_an_agent_goes_on_where_the_last_one_was() -> None:
    before, after, late = Node(), Node(), Node()
    before.pause(0, AFTER_S, a_gpu())
    reading = before.read(AFTER_S, a_gpu())
    said = GpuUsageStatus(time=reading.at, unused=before.unused.reported(reading))
    after.unused.restore(said, reading.at + timedelta(minutes=14))
    late.unused.restore(said, reading.at + timedelta(minutes=16))
    for node in (after, late):
        assert node.said is None
        node.read(AFTER_S + 840, a_gpu())
    assert (after.since_s(), late.since_s()) == (0, AFTER_S + 840)
    assert after.changed == ["train"]


def test_short_pauses_are_not_reported() -> None:
    node = Node()
    node.read(0, a_gpu())
    assert node.unused.reported(node.read(299, a_gpu())) == []
    [said] = node.unused.reported(node.read(300, a_gpu()))
    assert (said.namespace, said.claim, said.since) == ("team", "train", START)


def with_memory(claim: PreparedClaim, *amounts: str) -> PreparedClaim:
    """The claim with shares of these amounts of the GPU."""
    [device] = claim.devices
    shares = [
        msgspec.structs.replace(device, share_id=f"s{number}", consumed={"memory": amount})
        for number, amount in enumerate(amounts)
    ]
    return msgspec.structs.replace(claim, devices=shares)


def test_a_share_that_is_exceeded_is_said_with_the_greediest_process_until_it_is_not() -> None:
    claim = with_memory(TRAIN, "10Gi")
    small, large = ProcessUse(1, 2 << 30, 1), ProcessUse(2, 9 << 30, 1)
    places = {1: place("a"), 2: place("a", "sidecar")}
    node = Node()
    node.read(0, a_gpu(small), claims=(claim,), places=places)
    node.changed.clear()
    node.read(15, a_gpu(small, large), claims=(claim,), places=places)
    assert node.changed == ["train"]
    [said] = (node.conditions.known or {})[HELD]
    assert said.type == CONDITION_MEMORY_EXCEEDED
    assert said.message == (
        "Its programs use more memory than the 10Gi that the claim asked for. "
        "Most of it is used in container sidecar of pod a, by process 2."
    )
    node.read(30, a_gpu(small, ProcessUse(3, 9 << 30, 1)), claims=(claim,), places={**places, 3: place("a")})
    assert (node.conditions.known or {})[HELD] == [said], "figures that move are no news"
    node.read(45, claims=(claim,), places=places)
    assert (node.conditions.known or {})[HELD] == [said], "the GPU could not be read"
    node.read(60, a_gpu(small), claims=(claim,), places=places)
    assert (node.said, node.changed) == ({}, ["train", "train"])


def test_several_shares_of_a_gpu_add_up_and_others_are_not_counted() -> None:
    claim, other = with_memory(TRAIN, "1Gi", "2Gi"), with_memory(a_claim("other", "b"), "1Gi")
    gpu = a_gpu(ProcessUse(1, 3 << 30, 1), ProcessUse(2, 2 << 30, 1), ProcessUse(3, 9 << 30, 1))
    node = Node()
    node.read(0, gpu, claims=(claim, other), places={1: place("a"), 2: place("b")})
    assert node.said == {HeldDevice(other.uid, GPU): [CONDITION_MEMORY_EXCEEDED]}


def test_a_claim_that_asked_for_no_memory_exceeds_nothing() -> None:
    node = Node()
    for claim in (TRAIN, with_memory(TRAIN, "0"), with_memory(TRAIN, "what")):
        node.read(0, a_gpu(ProcessUse(1, 70 << 30, 1)), claims=(claim,))
        assert node.said == {}
