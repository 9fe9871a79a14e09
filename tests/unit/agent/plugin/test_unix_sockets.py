"""Socket files: how they are published, cleared and withdrawn, and that no live socket of others is removed."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draco.agent.plugin import unix_sockets
from draco.agent.plugin.unix_sockets import SocketTaken, hidden_beside, identity, listener, show, withdraw


@contextmanager
def bound(path: Path, *, listening: bool = True) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
        if listening:
            one.listen()
        yield one


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def leave_nothing(_path: Path) -> None:
    return


def leave_dead(path: Path) -> None:
    with bound(path):
        pass


def leave_link(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


@pytest.mark.parametrize("leave", [leave_nothing, leave_dead, Path.touch, leave_link])
def test_what_an_earlier_run_left_is_replaced(tmp_path: Path, leave: Callable[[Path], None]) -> None:
    path = tmp_path / "x.sock"
    leave(path)
    hidden = hidden_beside(path)
    with bound(hidden):
        assert show(hidden, path) == identity(path)
        assert listener(path) == os.getpid()
        assert names(tmp_path) == ["x.sock"]


def test_a_socket_on_which_somebody_listens_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    hidden = hidden_beside(path)
    with bound(path), bound(hidden):
        theirs = identity(path)
        with pytest.raises(SocketTaken, match=rf"{path} is served by process {os.getpid()}"):
            show(hidden, path)
        assert identity(path) == theirs
        assert names(tmp_path) == ["x.sock"]


def test_a_socket_too_busy_to_answer_or_of_another_type_counts_as_alive(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "datagrams"))
        assert listener(tmp_path / "datagrams") == 0
    assert listener(tmp_path / "datagrams") is None


def test_one_whose_owner_begins_to_listen_while_it_is_moved_aside_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.sock"
    hidden = hidden_beside(path)
    with bound(path, listening=False) as theirs, bound(hidden):
        before, move = identity(path), unix_sockets._move_aside

        def late(*moved: object) -> object:
            theirs.listen()
            return move(*moved)  # type: ignore[arg-type]

        monkeypatch.setattr(unix_sockets, "_move_aside", late)
        with pytest.raises(SocketTaken):
            show(hidden, path)
        assert identity(path) == before
        assert listener(path) == os.getpid()
        assert names(tmp_path) == ["x.sock"]


def test_one_that_takes_the_place_of_a_dead_one_at_the_last_moment_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.sock"
    leave_dead(path)
    dead = identity(path)
    assert dead
    with bound(tmp_path / "theirs") as _:
        theirs, rename = identity(tmp_path / "theirs"), Path.rename

        def replaced(moved: Path, target: Path) -> Path:
            if moved == path and identity(path) == dead:
                os.rename(tmp_path / "theirs", path)  # noqa: PTH104 - the method is what is replaced
            return rename(moved, target)

        monkeypatch.setattr(Path, "rename", replaced)
        withdraw(path, dead)
        assert identity(path) == theirs
        assert names(tmp_path) == ["x.sock"]


def test_only_the_file_that_was_meant_is_withdrawn(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with bound(path):
        ours = identity(path)
        assert ours
    path.unlink()
    withdraw(path, ours)
    with bound(path):
        withdraw(path, ours)
        assert path.exists()
        theirs = identity(path)
        assert theirs
        withdraw(path, theirs)
    assert names(tmp_path) == []
