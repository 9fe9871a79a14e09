"""The record's file: what is still trusted after damage, interrupted writes, and writes by older agents."""

from pathlib import Path

import msgspec
import pytest

from draco.agent.files import Files
from draco.agent.hardware.gpus import KnownGpu
from draco.agent.record import checkpoint, journal
from draco.agent.record.checkpoint import Checkpoint, CheckpointDamaged, RecordState
from draco.agent.record.contents import InstanceState, OwnedInstance, PreparationState, PreparedClaim, PreparedDevice
from draco.resources.names import ClaimUid, GpuUuid
from tests.builders import a_gpu
from tests.doubles.files import Writes

FLIPS = (0x01, 0x20, 0x80, 0xFF)


def a_prepared_claim(name: str, state: PreparationState = PreparationState.PREPARED) -> PreparedClaim:
    device = PreparedDevice(request="gpu", pool="node-0", device="gpu-0", gpu=GpuUuid("GPU-0"), minor=0)
    return PreparedClaim(uid=ClaimUid(name), namespace="default", name=name, state=state, devices=[device])


def an_instance(start: int) -> OwnedInstance:
    return OwnedInstance(
        gpu=GpuUuid("GPU-0"), profile_id=19, start=start, size=1, state=InstanceState.MADE, boot_id="boot", gi=start
    )


def a_record(path: Path) -> tuple[Checkpoint, list[RecordState]]:
    """A record with a few changes, and its state after each."""
    record = Checkpoint(path, Files(), boot_id="")
    said = []
    for change in (
        lambda: record.replace([], boot_id="boot"),
        lambda: record.put(a_prepared_claim("one", PreparationState.PREPARING)),
        lambda: record.change(put=[a_prepared_claim("one")], own=[an_instance(0), an_instance(1)]),
        lambda: record.remember([KnownGpu(uuid=a_gpu(0).uuid, device="gpu-0", last=a_gpu(0))]),
        lambda: record.put(a_prepared_claim("two")),
        lambda: record.change(drop=[ClaimUid("one")], disown=[an_instance(0).key]),
    ):
        change()
        said.append(told(record))
    return record, said


def told(record: Checkpoint) -> RecordState:
    return RecordState(
        boot_id=record.boot_id,
        claims=dict(record.claims),
        instances=dict(record.instances),
        gpus=dict(record.known),
    )


def said_by(content: bytes) -> RecordState:
    return msgspec.structs.replace(checkpoint.read(content), position=None)


def believed(content: bytes) -> tuple[RecordState | None, bool]:
    """The state that these bytes give, or gave before the damage; and whether they are intact."""
    try:
        return said_by(content), True
    except CheckpointDamaged as damage:
        return damage.before, False


def written(path: Path) -> int:
    """The length of the file without the padding at its end."""
    return len(path.read_bytes().rstrip(b" "))


def test_what_was_recorded_is_read_again_and_the_journal_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    _, said = a_record(path)
    again = Checkpoint(path, Files(), boot_id="")
    again.restore(checkpoint.load(path, Files()))
    assert told(again) == said[-1]
    before, size = written(path), path.stat().st_size
    again.put(a_prepared_claim("three"))
    assert (written(path) > before, path.stat().st_size) == (True, size)
    assert said_by(path.read_bytes()) == told(again)


def test_every_single_byte_flipped_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    _, said = a_record(path)
    content = path.read_bytes()
    for at in (*range(written(path) + 64), len(content) - 1):
        for flip in FLIPS:
            harmed = bytearray(content)
            harmed[at] ^= flip
            found, whole = believed(bytes(harmed))
            assert (found == said[-1]) if whole else (found in [RecordState(), *said]), f"byte {at} ^ {flip:#x}"


def test_a_file_that_lost_its_end_is_damaged_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    a_record(path)
    content = path.read_bytes()
    for length in (*range(written(path) + 64), len(content) - 1):
        with pytest.raises(CheckpointDamaged):
            checkpoint.read(content[:length])


def test_a_write_that_was_cut_off_counts_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    record, said = a_record(path)
    before = path.read_bytes()
    start = written(path)
    record.put(a_prepared_claim("three"))
    after = path.read_bytes()
    last = written(path) - 1  # the index of its last byte, the end of the line
    for end in range(start, last + 2):
        found = checkpoint.read(after[:end] + before[end:])
        assert msgspec.structs.replace(found, position=None) == (told(record) if end >= last else said[-1])
        if start < end <= last:
            assert found.position is None, "the next entry would follow half of one"


def test_after_an_error_of_the_disk_the_file_is_written_anew(tmp_path: Path) -> None:
    class Failing(Writes):
        def overwrite(self, path: Path, offset: int, content: bytes) -> None:
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(content[:7])
            raise OSError(5, "Input/output error", str(path))

    path = tmp_path / "checkpoint.json"
    record = Checkpoint(path, files := Failing(), boot_id="")
    record.put(a_prepared_claim("one"))
    with pytest.raises(OSError, match="Input/output error"):
        record.put(a_prepared_claim("two"))
    assert list(record.claims) == ["one"]
    assert said_by(path.read_bytes()).claims == {"one": a_prepared_claim("one")}
    record.put(a_prepared_claim("three"))
    assert len(files.written) == 2
    assert said_by(path.read_bytes()) == told(record)


def test_a_record_that_somebody_removes_or_cuts_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    record, _ = a_record(path)
    path.unlink()
    record.put(a_prepared_claim("three"))
    assert said_by(path.read_bytes()) == told(record)
    path.write_bytes(b"")
    record.put(a_prepared_claim("four"))
    assert said_by(path.read_bytes()) == told(record)


def test_a_full_journal_is_written_anew_from_what_is_on_record(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    record = Checkpoint(path, files := Writes(), boot_id="boot")
    for number in range(600):
        record.put(a_prepared_claim(f"claim-{number % 3}"))
        record.drop(ClaimUid(f"claim-{(number + 1) % 3}"))
    whole = [content for _, content in files.written if len(content) >= journal.ROOM]
    assert 2 < len(whole) < 20
    assert path.stat().st_size < 2 * journal.ROOM
    assert said_by(path.read_bytes()) == told(record)


def test_what_is_on_record_already_is_not_written_again(tmp_path: Path) -> None:
    record = Checkpoint(tmp_path / "checkpoint.json", files := Writes(), boot_id="boot")
    record.put(a_prepared_claim("one"))
    record.put(a_prepared_claim("one"))
    record.drop(ClaimUid("two"))
    assert len(files.written) == 1


def test_a_record_of_a_newer_agent_is_not_believed_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    a_record(path)
    newer = path.read_bytes().replace(b'"version":3', b'"version":4')
    with pytest.raises(CheckpointDamaged, match="has version 4, but this agent reads only version 3"):
        checkpoint.read(newer)
