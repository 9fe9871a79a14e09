"""The limit of inotify instances: engines that run have enough, and the machine gets its own limit back afterwards."""

import contextlib
import os
from pathlib import Path

import pytest

from draco_local.cluster.kindnode import watchers


class Machine:
    """The limit's setting and its file, and engines that start and end."""

    def __init__(self, folder: Path, number: int) -> None:
        self.setting, self.file = folder / "max_user_instances", folder / "draco-inotify-instances"
        self.setting.write_text(f"{number}\n")

    @property
    def number(self) -> int:
        return int(self.setting.read_text())

    def start(self) -> int:
        """The file descriptor that an engine's processes hold."""
        with watchers.raised(setting=self.setting, file=self.file) as descriptor:
            return os.dup(descriptor)

    def stop(self, engine: int) -> None:
        os.close(engine)
        watchers.set_back(setting=self.setting, file=self.file)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, 128)


def test_the_last_of_several_engines_sets_the_number_back(machine: Machine) -> None:
    one, other = machine.start(), machine.start()
    machine.stop(one)
    assert machine.number == 1024
    machine.stop(other)
    assert machine.number == 128
    assert not machine.file.exists()


def test_what_a_killed_engine_left_is_set_back_by_the_next_that_stops(machine: Machine) -> None:
    os.close(machine.start())
    assert machine.number == 1024
    machine.stop(machine.start())
    assert machine.number == 128


def test_who_dies_while_it_starts_an_engine_is_no_engine(machine: Machine) -> None:
    with (
        contextlib.suppress(InterruptedError),
        watchers.raised(setting=machine.setting, file=machine.file),
    ):
        raise InterruptedError
    watchers.set_back(setting=machine.setting, file=machine.file)
    assert machine.number == 128


@pytest.mark.parametrize("number", [1024, 8192])
def test_a_machine_that_has_enough_keeps_its_number(tmp_path: Path, number: int) -> None:
    machine = Machine(tmp_path, number)
    engine = machine.start()
    assert machine.number == number
    machine.stop(engine)
    assert machine.number == number


def test_a_number_that_somebody_set_meanwhile_stays(machine: Machine) -> None:
    engine = machine.start()
    machine.setting.write_text("512\n")
    machine.stop(engine)
    assert machine.number == 512


def test_where_no_engine_ever_ran_nothing_changes(machine: Machine) -> None:
    watchers.set_back(setting=machine.setting, file=machine.file)
    assert machine.number == 128
