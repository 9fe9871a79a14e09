from pathlib import Path

import msgspec
import pytest

from draco.resources.api.meta import ObjectKey
from draco.resources.names import ClaimUid
from draco_local.simulator.kubelet.ledger import ClaimRecord, Ledger, PodRecord
from tests.builders import MOMENT


def a_record(uid: str, *claims: str, name: str = "pod") -> PodRecord:
    held = [ClaimRecord(ClaimUid(claim), "default", claim, ["gpu.nvidia.com"]) for claim in claims]
    return PodRecord(uid, "default", name, held)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dra_manager_state"


def test_what_was_put_is_there_after_a_restart(file: Path) -> None:
    ledger = Ledger(file)
    record = msgspec.structs.replace(a_record("one", "claim"), started_at=MOMENT)
    ledger.put(a_record("one", "claim"))
    ledger.put(record)
    ledger.put(a_record("two"))
    ledger.drop("two")
    assert Ledger(file).pod("one") == record
    assert Ledger(file).pod("two") is None


def test_two_pods_of_one_name_are_two_records(file: Path) -> None:
    ledger = Ledger(file)
    ledger.put(a_record("old"))
    ledger.put(a_record("new"))
    assert {record.uid for record in ledger.named(ObjectKey("default", "pod"))} == {"old", "new"}
    assert ledger.names() == {ObjectKey("default", "pod")}


def test_a_claim_is_in_use_as_long_as_another_pod_holds_it(file: Path) -> None:
    ledger = Ledger(file)
    ledger.put(a_record("one", "shared", "own"))
    ledger.put(a_record("two", "shared"))
    assert ledger.used_by_others(ClaimUid("shared"), "one")
    assert not ledger.used_by_others(ClaimUid("own"), "one")
    ledger.drop("two")
    assert not ledger.used_by_others(ClaimUid("shared"), "one")


def test_the_file_names_every_claim_by_its_uid(file: Path) -> None:
    Ledger(file).put(a_record("one", "claim-uid"))
    assert "claim-uid" in file.read_text()


@pytest.mark.parametrize("content", ["", "{", '[{"uid": 7}]', '{"not": "a list"}'])
def test_a_file_that_cannot_be_read_is_kept_aside_and_the_node_starts_empty(file: Path, content: str) -> None:
    file.write_text(content)
    ledger = Ledger(file)
    assert ledger.names() == set()
    assert file.with_suffix(".corrupt").read_text() == content
    ledger.put(a_record("one"))
    assert Ledger(file).pod("one") is not None
