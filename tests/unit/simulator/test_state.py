"""The state file: reproducible, shared between processes, and either whole or an error."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draco_local.simulator.gpus.boards import BoardError
from draco_local.simulator.gpus.state import EVENTS_KEPT, StateError, create, load, mutate, new_node

COUNT_UP = """
import sys
import tempfile
from pathlib import Path
from draco_local.simulator.gpus.state import mutate
for _ in range(25):
    with mutate(Path(sys.argv[1])) as state:
        state.next_event += 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node" / "state.json"


def test_the_same_node_name_gives_the_same_gpus_again(path: Path, tmp_path: Path) -> None:
    first = create(path, board="A100-80GB", gpus=4, node_name="node-7")
    second = create(tmp_path / "other.json", board="A100-80GB", gpus=4, node_name="node-7")
    assert first == second == load(path)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_two_nodes_never_share_a_uuid(one: str, other: str) -> None:
    uuids = {gpu.uuid for name in {one, other} for gpu in new_node(gpus=8, node_name=name).gpus}
    assert len(uuids) == 8 * len({one, other})


def test_gpus_of_a_node_differ_in_everything_that_identifies_them() -> None:
    gpus = new_node(gpus=8, node_name="n").gpus
    for identity in ("uuid", "serial", "minor", "bus_id"):
        assert len({getattr(gpu, identity) for gpu in gpus}) == 8


def test_an_unknown_board_is_answered_with_the_known_ones_and_the_nearest(path: Path) -> None:
    with pytest.raises(BoardError, match=r"no board 'H100-80G'.*A100-40GB.*T4.*Did you mean H100-80GB\?"):
        create(path, board="H100-80G", node_name="n")
    assert not path.exists()


def test_a_board_is_found_whatever_the_case() -> None:
    assert new_node(board="rtx-pro-6000", gpus=1, node_name="n").gpus[0].board == "RTX-PRO-6000"


@pytest.mark.parametrize("gpus", [-1, 9])
def test_more_gpus_than_slots_are_refused(gpus: int, path: Path) -> None:
    with pytest.raises(BoardError, match=rf"0 to 8 GPUs of board H100-80GB, not {gpus}"):
        create(path, gpus=gpus, node_name="n")


def test_a_node_may_have_no_gpu_at_all(path: Path) -> None:
    assert create(path, gpus=0, node_name="n").gpus == []


def test_a_missing_file_is_one_sentence_that_says_what_to_do(path: Path) -> None:
    for attempt in (lambda: load(path), lambda: mutate(path).__enter__()):
        with pytest.raises(StateError, match=rf"no simulated GPU state at {path}; create the simulated node first"):
            attempt()


def test_a_file_cut_anywhere_is_one_sentence_that_names_it(path: Path) -> None:
    create(path, gpus=1, node_name="n")
    whole = path.read_bytes().rstrip()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(StateError, match=rf"{path} is damaged .*delete it and create the simulated node again"):
            load(path)


def test_a_file_of_another_format_is_refused(path: Path) -> None:
    create(path, gpus=1, node_name="n")
    path.write_text(path.read_text().replace('"format": 2', '"format": 99'))
    with pytest.raises(StateError, match=r"has format 99, this version reads 2"):
        load(path)


def test_a_change_that_fails_half_way_leaves_the_old_state(path: Path) -> None:
    before = create(path, gpus=2, node_name="n")

    def fail() -> None:
        with mutate(path) as state:
            state.gpus.clear()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert load(path) == before


def test_a_full_disk_leaves_the_old_state_and_no_litter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = create(path, gpus=2, node_name="n")

    def on_a_full_disk(*, prefix: str, dir: Path) -> tuple[int, str]:  # noqa: A002 - the name is tempfile's
        file = dir / f"{prefix}new"
        file.touch()
        return os.open("/dev/full", os.O_WRONLY), str(file)

    monkeypatch.setattr(tempfile, "mkstemp", on_a_full_disk)
    with pytest.raises(StateError, match=r"cannot be written: No space left on device"), mutate(path) as state:
        state.gpus.clear()
    assert load(path) == before
    assert {entry.name for entry in path.parent.iterdir()} == {"state.json", "state.json.lock"}


def test_two_processes_lose_no_change(path: Path) -> None:
    create(path, gpus=1, node_name="n")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT_UP, str(path)]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert load(path).next_event == 51


def test_a_reader_sees_the_old_state_or_the_new_one_and_nothing_between(path: Path) -> None:
    create(path, gpus=8, node_name="n")
    done = threading.Event()

    def write() -> None:
        for number in range(60):
            with mutate(path) as state:
                for gpu in state.gpus:
                    gpu.temperature_c = number
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert len({gpu.temperature_c for gpu in load(path).gpus}) == 1
    writer.join()


def test_the_event_queue_forgets_its_oldest(path: Path) -> None:
    state = new_node(gpus=1, node_name="n")
    for number in range(EVENTS_KEPT + 10):
        state.add_event(state.gpus[0].uuid, 8, number)
    assert [state.events[0].data, state.events[-1].data, len(state.events)] == [10, EVENTS_KEPT + 9, EVENTS_KEPT]
