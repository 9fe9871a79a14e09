"""What the observer says of driver files in containers, and what the cluster machine does to them."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.cluster.drivers import VERSIONS, DriverFiles
from tests.adversary.cluster.observer.files import ANEW_S, SETTLED_S, FilesLaw
from tests.adversary.cluster.observer.hardware import Spec, read_specs
from tests.adversary.cluster.observer.suspicion import Suspicion

NODE = "adv-0"
FIRST, SECOND = VERSIONS[:2]
STATES: Mapping[str, Mapping[str, Any]] = {NODE: {"driver": {"version": FIRST}}}
RELOADED: Mapping[str, Mapping[str, Any]] = {NODE: {"driver": {"version": SECOND}}}
LONG_S = 100.0


@pytest.fixture
def driver(tmp_path: Path) -> DriverFiles:
    files = DriverFiles(tmp_path)
    files.install(FIRST)
    return files


def spec(driver: DriverFiles) -> Spec:
    needs = map(str, driver.root.rglob(f"libcuda.so.{driver.installed}"))
    return Spec(NODE, "claim", frozenset(), {}, frozenset(), frozenset(needs), 1)


def seen(law: FilesLaw, one: Spec, now: float = LONG_S) -> list[Suspicion]:
    """The verdict on a spec that already existed a moment ago."""
    list(law.look([one], STATES, [], now))
    return list(law.look([one], STATES, [], now + 0.5))


def test_a_spec_with_files_of_the_loaded_driver_is_right(driver: DriverFiles) -> None:
    assert not seen(FilesLaw(), spec(driver))


def test_a_new_spec_names_only_files_that_are_there(driver: DriverFiles) -> None:
    gone = spec(driver)
    driver.remove()
    (wrong,) = seen(FilesLaw(), gone)
    assert wrong.text.endswith("which is not there")


def test_a_new_spec_has_files_of_the_loaded_driver_and_not_of_another(driver: DriverFiles) -> None:
    driver.install(SECOND)
    (wrong,) = seen(FilesLaw(), spec(driver))
    assert wrong.text.endswith(f"but the loaded driver is {FIRST}")


def test_a_new_spec_has_a_driver(driver: DriverFiles) -> None:
    (wrong,) = seen(FilesLaw(), spec(driver)._replace(needs=frozenset()))
    assert wrong.text.endswith("nothing of the driver")


def test_what_is_written_while_files_change_is_nobodys_fault(driver: DriverFiles) -> None:
    law, gone = FilesLaw(), spec(driver)
    driver.remove()
    law.changed(NODE, LONG_S - SETTLED_S)
    assert not seen(law, gone)


def test_what_a_container_has_is_written_anew_after_a_while(driver: DriverFiles) -> None:
    law, gone = FilesLaw(), spec(driver)
    driver.install(SECOND)
    law.changed(NODE, LONG_S)
    list(law.look([gone], RELOADED, [NODE], LONG_S))
    assert not list(law.look([gone], RELOADED, [NODE], LONG_S + ANEW_S))
    assert list(law.look([gone], RELOADED, [NODE], LONG_S + ANEW_S + 1.0))
    assert not list(law.look([gone], RELOADED, [], LONG_S + ANEW_S + 2.0)), "nobody is there to do it"


def test_nothing_is_written_anew_before_the_files_of_the_loaded_driver_are_there(driver: DriverFiles) -> None:
    law, gone = FilesLaw(), spec(driver)
    driver.remove()
    law.changed(NODE, LONG_S)
    list(law.look([gone], STATES, [NODE], LONG_S))
    assert not list(law.look([gone], STATES, [NODE], LONG_S + ANEW_S + 1.0))
    driver.install(SECOND)
    assert not list(law.look([gone], STATES, [NODE], LONG_S + ANEW_S + 2.0))
    assert list(law.look([gone], RELOADED, [NODE], LONG_S + ANEW_S + 3.0))


def test_what_all_devices_of_a_spec_get_is_read_too(tmp_path: Path) -> None:
    edits = {
        "mounts": [{"hostPath": "/a"}],
        "hooks": [{"path": "/b"}],
        "deviceNodes": [{"path": "/dev/nvidia3"}],
    }
    name = "draco-gpu.nvidia.com-01234567-0123-0123-0123-012345678901.json"
    (tmp_path / name).write_text(json.dumps({"containerEdits": edits, "devices": []}))
    (found,) = read_specs(NODE, tmp_path)
    assert found.needs == {"/a", "/b"}
    assert set(found.boards) == {"/dev/nvidia3"}
    assert found.written


def test_a_driver_comes_in_the_place_of_another_and_goes(driver: DriverFiles) -> None:
    driver.install(SECOND)
    assert driver.installed == SECOND
    assert not list(driver.root.rglob(f"libcuda.so.{FIRST}"))
    driver.remove()
    assert not driver.installed


def test_a_toolkit_says_what_there_is_fails_or_is_gone(driver: DriverFiles) -> None:
    program = driver.image / "nvidia-ctk"
    command: list[str | Path] = [
        program,
        "cdi",
        "generate",
        "--driver-root",
        driver.root,
        "--nvidia-cdi-hook-path",
        "/hook",
    ]
    driver.toolkit("works")
    said = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["containerEdits"]
    assert f"libcuda.so.{FIRST}" in {Path(each["hostPath"]).name for each in said["mounts"]}
    assert [each["path"] for each in said["hooks"]] == ["/hook"]
    driver.toolkit("fails")
    assert subprocess.run(command, check=False).returncode
    driver.toolkit("gone")
    assert not program.exists()
