"""What containers get from the driver: the edits of NVIDIA's toolkit or Draco's own, and how long a claim keeps them."""

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draco.agent.claims import cdi
from draco.agent.claims.cdi import CdiFolder
from draco.agent.containers import driver_files, toolkit
from draco.agent.containers.common_edits import VOID, CommonEdits
from draco.agent.containers.edits import ContainerEdits
from draco.agent.hardware import programs
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.hardware.driver_root import DriverRoot
from draco.agent.record.contents import Partition, PreparationState, PreparedClaim, PreparedDevice
from draco.resources.names import NVIDIA_DRIVER, ClaimUid, GpuUuid
from tests.doubles.files import FullDisk
from tests.unit.agent.driver_on_disk import FOLDER, VERSION, a_driver

HOOK = Path("/usr/bin/nvidia-cdi-hook")
BY_NVIDIA = Path(__file__).with_name("nvidia_ctk.json")
"""What nvidia-ctk 1.20.1 writes in mode nvml for `a_driver` at /driver with one simulated GPU, without device nodes."""


def nvidias() -> ContainerEdits:
    return msgspec.json.decode(BY_NVIDIA.read_bytes(), type=_Spec).container_edits


class _Spec(msgspec.Struct, rename="camel"):
    container_edits: ContainerEdits


@pytest.fixture
def root(tmp_path: Path) -> DriverRoot:
    """A node whose driver root is /driver; this machine's own toolkit is not found."""
    a_driver(tmp_path / "node")
    return DriverRoot(Path("/driver"), tmp_path / "node")


@pytest.fixture(autouse=True)
def no_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def own(root: DriverRoot, hook: Path | None = HOOK) -> ContainerEdits:
    return driver_files.edits(next(root.installed()), hook)


def mounts(edits: ContainerEdits) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {each.container_path: (each.host_path, tuple(each.options)) for each in edits.mounts}


def test_our_own_edits_mount_file_by_file_what_nvidias_toolkit_mounts(root: DriverRoot) -> None:
    assert mounts(own(root)) == mounts(nvidias())


def test_our_own_hooks_make_the_links_and_the_linker_cache(root: DriverRoot) -> None:
    ours = {each.args[1]: each for each in own(root).hooks}
    theirs = {each.args[1]: each for each in nvidias().hooks if each.args[1] == "update-ldcache"}
    assert set(ours) == {"create-symlinks", "update-ldcache"}
    assert sorted(ours["update-ldcache"].args) == sorted(theirs["update-ldcache"].args)
    assert f"libcuda.so.1::/{FOLDER}/libcuda.so" in ours["create-symlinks"].args
    assert all(each.path == str(HOOK) and each.hook_name == "createContainer" for each in ours.values())


def test_without_a_hook_libraries_are_there_under_the_names_that_programs_ask_for(root: DriverRoot) -> None:
    edits = own(root, None)
    assert not edits.hooks
    found = mounts(edits)
    file = f"/driver/{FOLDER}/libcuda.so.{VERSION}"
    for folder in (f"/{FOLDER}", "/usr/local/nvidia/lib64"):
        for name in ("libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}"):
            assert found[f"{folder}/{name}"][0] == file
    assert not [path for path in found if "libc.so" in path]


def test_a_driver_in_a_container_of_its_own_is_mounted_at_the_same_place_as_any_other(tmp_path: Path) -> None:
    a_driver(tmp_path / "node/run/nvidia/driver")
    found = mounts(own(DriverRoot(Path("/"), tmp_path / "node")))
    name = f"/{FOLDER}/libcuda.so.{VERSION}"
    assert found[name][0] == f"/run/nvidia/driver{name}"


def test_libraries_behind_links_are_mounted_where_they_lie(tmp_path: Path) -> None:
    """Debian's packages are laid out like this."""
    a_driver(tmp_path)
    real = tmp_path / FOLDER / "nvidia" / "current"
    real.mkdir(parents=True)
    for name in (f"libnvidia-ml.so.{VERSION}", f"libcuda.so.{VERSION}"):
        (tmp_path / FOLDER / name).rename(real / name)
        (tmp_path / FOLDER / name).symlink_to(f"nvidia/current/{name}")
    edits = own(DriverRoot(Path("/"), tmp_path))
    assert f"/{FOLDER}/nvidia/current/libcuda.so.{VERSION}" in mounts(edits)
    [cache] = [each for each in edits.hooks if "update-ldcache" in each.args]
    assert f"/{FOLDER}/nvidia/current" in cache.args
    [links] = [each for each in edits.hooks if "create-symlinks" in each.args]
    assert f"libcuda.so.1::/{FOLDER}/nvidia/current/libcuda.so" in links.args, "where the linker finds what it leads to"


def test_a_program_is_taken_from_beside_the_libraries(tmp_path: Path) -> None:
    """Hosts with the whole driver below one folder are laid out like this; their /usr/bin only has a launcher."""
    a_driver(tmp_path)
    program = tmp_path / "usr/local/nvidia/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)

    found = mounts(own(DriverRoot(Path("/"), tmp_path)))

    assert "/usr/local/nvidia/bin/nvidia-smi" in found
    assert "/usr/bin/nvidia-smi" not in found
    assert "/usr/bin/nvidia-debugdump" in found


def test_no_container_gets_the_pipe_of_the_nodes_own_mps_daemon(root: DriverRoot, no_toolkit: Path) -> None:
    (root.view / "tmp/nvidia-mps").mkdir(parents=True)
    assert "/tmp/nvidia-mps" not in mounts(own(root))
    said = json.loads(BY_NVIDIA.read_bytes().replace(b"/driver/", f"{root.view}/".encode()))
    pipe = {"hostPath": f"{root.view}/tmp/nvidia-mps", "containerPath": "/tmp/nvidia-mps"}
    said["containerEdits"]["mounts"].append(pipe)
    a_program(no_toolkit, "nvidia-ctk", answering(root, json.dumps(said).encode()))
    a_program(no_toolkit, "nvidia-cdi-hook", "")
    common = CommonEdits(root, hook_folder=no_toolkit.parent)
    common.refresh(VERSION)
    assert common.problem == ""
    assert "/run/nvidia-persistenced/socket" in mounts(common.current())
    assert "/tmp/nvidia-mps" not in mounts(common.current())


# Asking NVIDIA's toolkit


def a_program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder / name


def answering(root: DriverRoot, content: bytes | None = None) -> str:
    """A script that prints what nvidia-ctk would, with paths as the agent sees the driver root."""
    said = root.view.parent / "said.json"
    said.write_bytes(content or BY_NVIDIA.read_bytes().replace(b"/driver/", f"{root.view}/".encode()))
    return f'echo "$@" >> {root.view.parent}/asked; exec /bin/cat {said}'


def asked(root: DriverRoot) -> list[str]:
    return (root.view.parent / "asked").read_text().splitlines()


def test_the_images_toolkit_is_asked_and_its_paths_are_the_nodes(root: DriverRoot, no_toolkit: Path) -> None:
    a_program(no_toolkit, "nvidia-ctk", answering(root))
    a_program(no_toolkit, "nvidia-cdi-hook", "")
    common = CommonEdits(root, hook_folder=no_toolkit.parent)
    common.refresh(VERSION)
    assert common.problem == ""
    found = common.current()
    assert mounts(found) == mounts(nvidias())
    assert VOID in found.env
    assert f"--nvidia-cdi-hook-path {no_toolkit.parent}/nvidia-cdi-hook" in asked(root)[0]
    assert f"--driver-root {root.view}" in asked(root)[0]


def test_the_nodes_own_toolkit_comes_first_run_in_the_nodes_root(root: DriverRoot, no_toolkit: Path) -> None:
    said = root.view.parent / "said.json"
    said.write_bytes(BY_NVIDIA.read_bytes())
    a_program(no_toolkit, "chroot", f'echo "$@" >> {root.view.parent}/asked; exec /bin/cat {said}')
    a_program(no_toolkit, "nvidia-ctk", "exit 1")
    for name in ("nvidia-ctk", "nvidia-cdi-hook"):
        a_program(root.view / "usr/bin", name, "")
    common = CommonEdits(root, hook_folder=no_toolkit.parent)
    common.refresh(VERSION)
    assert common.problem == ""
    assert mounts(common.current()) == mounts(nvidias())
    assert asked(root)[0].startswith(f"{root.view} /usr/bin/nvidia-ctk ")
    assert "--driver-root /driver --dev-root /" in asked(root)[0]


def test_the_images_hook_is_put_where_the_runtime_finds_it(root: DriverRoot, no_toolkit: Path, tmp_path: Path) -> None:
    program = a_program(no_toolkit, "nvidia-cdi-hook", "first")
    kept = toolkit.hook(root, keep_in=tmp_path)
    assert kept == tmp_path / "nvidia-cdi-hook"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o755
    program.write_text("second")
    toolkit.hook(root, keep_in=tmp_path)
    assert kept.read_text() == "second"


def test_the_nodes_own_hook_comes_first(root: DriverRoot, no_toolkit: Path, tmp_path: Path) -> None:
    a_program(no_toolkit, "nvidia-cdi-hook", "")
    a_program(root.view / "usr/bin", "nvidia-cdi-hook", "")
    assert toolkit.hook(root, keep_in=tmp_path) == Path("/driver/usr/bin/nvidia-cdi-hook")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'level=error msg=\"no driver\"' >&2; exit 1", 'nvidia-ctk failed (level=error msg="no driver")'),
        ("echo nonsense", "nvidia-ctk wrote no CDI spec"),
        ("echo '{}'", "nvidia-ctk found no files of the driver"),
        ("exec /bin/sleep 60", "nvidia-ctk did not answer within 0 s"),
        ("", "nvidia-ctk wrote no CDI spec"),
        ("exec /bin/cat /dev/zero", "nvidia-ctk wrote more than 4 MiB"),
        ("exec /bin/cat /dev/zero >&2", "nvidia-ctk wrote more than 4 MiB"),
        ("exec >&- 2>&-; exec /bin/sleep 60", "nvidia-ctk did not answer within 0 s"),
    ],
)
def test_where_the_toolkit_fails_our_own_edits_hold_and_the_reason_is_told(
    script: str, why: str, root: DriverRoot, no_toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "DEADLINE_S", 0.3)
    a_program(no_toolkit, "nvidia-ctk", script)
    a_program(root.view / "usr/bin", "nvidia-cdi-hook", "")
    common = CommonEdits(root, hook_folder=no_toolkit.parent)
    common.refresh(VERSION)
    assert why in (common.problem or "")
    assert "install the NVIDIA Container Toolkit on the node" in (common.problem or "")
    assert mounts(common.current()) == mounts(own(root, Path("/driver/usr/bin/nvidia-cdi-hook")))


@pytest.mark.parametrize(
    ("was", "becomes", "why"),
    [
        (f"libcuda.so.{VERSION}", "libcuda.so.555.42.02", f"left out libcuda.so.{VERSION}"),
        (f"libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.555.42.02", f"left out libnvidia-ml.so.{VERSION}"),
        ('"/driver/usr/bin/nvidia-smi"', '""', "a CDI spec that no runtime accepts (the path '')"),
        ("NVIDIA_CTK_LIBCUDA_DIR=/", "", "a CDI spec that no runtime accepts (the variable 'usr/lib"),
        ('"/usr/bin/nvidia-cdi-hook"', '"nvidia-cdi-hook"', "(a hook 'createContainer' without a path)"),
    ],
    ids=["another cuda", "another driver", "no path", "no variable", "no program"],
)
def test_an_answer_with_which_no_container_would_work_is_not_taken(
    was: str, becomes: str, why: str, root: DriverRoot, tmp_path: Path, no_toolkit: Path
) -> None:
    said = BY_NVIDIA.read_text()
    assert was in said
    rubbish = said.replace(was, becomes).replace("/driver/", f"{root.view}/").encode()
    a_program(no_toolkit, "nvidia-ctk", answering(root, rubbish))
    a_program(root.view / "usr/bin", "nvidia-cdi-hook", "")
    common = CommonEdits(root, hook_folder=tmp_path)
    common.refresh(VERSION)
    assert common.problem is not None
    assert why in common.problem
    assert f"/{FOLDER}/libcuda.so.{VERSION}" in mounts(common.current())


@pytest.mark.parametrize(
    "said", [b"", b"\xff\xfe", b"[]", b'{"x":' + b"[" * 100_000], ids=["nothing", "no text", "a list", "deep"]
)
def test_an_answer_that_is_no_spec_is_not_taken(
    said: bytes, root: DriverRoot, tmp_path: Path, no_toolkit: Path
) -> None:
    a_program(no_toolkit, "nvidia-ctk", answering(root, said or b" "))
    a_program(root.view / "usr/bin", "nvidia-cdi-hook", "")
    common = CommonEdits(root, hook_folder=tmp_path)
    common.refresh(VERSION)
    assert "nvidia-ctk wrote no CDI spec" in str(common.problem)


def test_a_toolkit_that_cannot_ask_nvml_is_asked_again_without(root: DriverRoot, no_toolkit: Path) -> None:
    a_program(no_toolkit, "nvidia-ctk", f'case "$*" in *"mode nvml"*) exit 1;; esac; {answering(root)}')
    a_program(no_toolkit, "nvidia-cdi-hook", "")
    common = CommonEdits(root, hook_folder=no_toolkit.parent)
    common.refresh(VERSION)
    assert common.problem == ""
    assert ["--mode management" in line for line in asked(root)] == [True]


def test_until_the_toolkit_has_answered_our_own_edits_hold(root: DriverRoot, tmp_path: Path) -> None:
    common = CommonEdits(root, hook_folder=tmp_path)
    assert common.problem is None
    assert f"/{FOLDER}/libcuda.so.{VERSION}" in mounts(common.current())


def test_another_driver_is_asked_about_once(root: DriverRoot, tmp_path: Path) -> None:
    common = CommonEdits(root, hook_folder=tmp_path)
    assert common.outdated(VERSION)
    common.refresh(VERSION)
    assert not common.outdated(VERSION)
    for path in list((root.view / FOLDER).glob(f"**/*.so.{VERSION}")):
        path.unlink()
    a_driver(root.view, version="595.58.03")
    assert common.outdated("595.58.03")
    assert f"/{FOLDER}/libcuda.so.595.58.03" in mounts(common.current()), "also before the toolkit is asked again"
    common.refresh("595.58.03")
    assert f"/{FOLDER}/libcuda.so.595.58.03" in mounts(common.current())
    assert not [path for path in mounts(common.current()) if path.endswith(VERSION)]


def test_a_toolkit_that_is_installed_or_repaired_later_is_asked_once(root: DriverRoot, tmp_path: Path) -> None:
    common = CommonEdits(root, hook_folder=tmp_path)
    common.refresh(VERSION)
    for name in ("nvidia-cdi-hook", "nvidia-ctk"):
        a_program(root.view / "usr/bin", name, "")
        assert common.outdated(VERSION), name
        common.refresh(VERSION)
        assert not common.outdated(VERSION)
    assert "update-ldcache" in str(common.current().hooks)
    (root.view / "usr/bin/nvidia-ctk").unlink()
    a_program(root.view / "usr/bin", "nvidia-ctk", "exit 0")
    assert common.outdated(VERSION)


def test_a_toolkit_that_may_be_run_only_later_is_asked_then(root: DriverRoot, tmp_path: Path) -> None:
    a_program(root.view / "usr/bin", "nvidia-ctk", "exit 0")
    toolkit = root.view / "usr/bin/nvidia-ctk"
    toolkit.chmod(0o644)
    common = CommonEdits(root, hook_folder=tmp_path)
    common.refresh(VERSION)
    assert not common.outdated(VERSION)
    before = toolkit.stat().st_ctime_ns
    while toolkit.stat().st_ctime_ns == before:  # file timestamps have a coarse resolution
        toolkit.chmod(0o755)
    assert common.outdated(VERSION)


def test_a_socket_that_is_gone_keeps_no_container_from_starting(root: DriverRoot, tmp_path: Path) -> None:
    common = CommonEdits(root, hook_folder=tmp_path)
    common.refresh(VERSION)
    assert "/run/nvidia-persistenced/socket" in mounts(common.current())
    (root.view / "run/nvidia-persistenced/socket").unlink()
    assert "/run/nvidia-persistenced/socket" not in mounts(common.current())


def test_where_no_driver_is_to_be_given_nobody_is_asked(tmp_path: Path) -> None:
    common = CommonEdits(None, hook_folder=tmp_path)
    assert not common.outdated(VERSION)
    assert common.current() == ContainerEdits(env=[VOID])


# What a claim keeps

CLAIM = PreparedClaim(
    uid=ClaimUid("1"),
    namespace="default",
    name="one",
    state=PreparationState.PREPARED,
    devices=[PreparedDevice(device="gpu-0", gpu=GpuUuid("GPU-1"), minor=0, request="gpu", pool="node-0")],
)


def a_folder(root: DriverRoot, tmp_path: Path) -> CdiFolder:
    common = CommonEdits(root, hook_folder=tmp_path)
    return CdiFolder(tmp_path / "cdi", FullDisk(), driver=NVIDIA_DRIVER, node=Capabilities(), common=common)


def test_a_partition_gets_of_the_driver_what_a_whole_gpu_gets(root: DriverRoot, tmp_path: Path) -> None:
    part = Partition(profile_id=9, start=0, size=4, gi=1, ci=0, uuid="MIG-1", profile="3g.40gb")
    device = msgspec.structs.replace(CLAIM.devices[0], device="gpu-0-mig-3g40gb-0", partition=part)
    folder = a_folder(root, tmp_path)
    folder.write(CLAIM)
    folder.write(msgspec.structs.replace(CLAIM, uid=ClaimUid("2"), devices=[device]))
    whole, divided = (json.loads(folder.path(ClaimUid(uid)).read_text())["containerEdits"] for uid in "12")
    assert (whole["env"].pop(), divided["env"].pop()) == ("DRACO_CLAIM_1=1", "DRACO_CLAIM_2=2")
    assert whole == divided


def test_a_claims_edits_stay_when_the_agent_finds_others(root: DriverRoot, tmp_path: Path, no_toolkit: Path) -> None:
    """After an upgrade of the agent, for example: a restarted container of the pod finds the same files as before."""
    a_folder(root, tmp_path).write(CLAIM)
    a_program(root.view / "usr/bin", "nvidia-cdi-hook", "")
    after = a_folder(root, tmp_path)
    assert after.is_current(CLAIM)
    after.write(CLAIM)
    assert "update-ldcache" in after.path(CLAIM.uid).read_text()


def test_a_spec_from_before_there_was_a_driver_is_made_good(root: DriverRoot, tmp_path: Path) -> None:
    shutil.rmtree(root.view / "usr")
    folder = a_folder(root, tmp_path)
    assert "has no NVIDIA driver below /driver now" in folder.common.lacking()
    folder.write(CLAIM)
    assert folder.is_current(CLAIM)
    a_driver(root.view)
    assert folder.common.lacking() == ""
    assert not folder.is_current(CLAIM)
    folder.write(CLAIM)
    assert f"libcuda.so.{VERSION}" in folder.path(CLAIM.uid).read_text()


def test_while_the_files_do_not_go_with_the_loaded_driver_a_spec_stays_and_nobody_is_asked(
    root: DriverRoot, tmp_path: Path
) -> None:
    common = CommonEdits(root, hook_folder=tmp_path, loaded=lambda: VERSION)
    folder = CdiFolder(tmp_path / "cdi", FullDisk(), driver=NVIDIA_DRIVER, node=Capabilities(), common=common)
    folder.write(CLAIM)
    for path in list((root.view / FOLDER).glob(f"**/*.so.{VERSION}")):
        path.unlink()
    a_driver(root.view, version="595.58.03")
    assert "Reload the driver or reboot the node." in folder.common.lacking()
    assert folder.is_current(CLAIM)
    assert not common.outdated(VERSION)
    other = msgspec.structs.replace(CLAIM, devices=[msgspec.structs.replace(CLAIM.devices[0], minor=7)])
    assert not folder.is_current(other), "the device nodes have to be right all the same"
    after = CommonEdits(root, hook_folder=tmp_path, loaded=lambda: "595.58.03")
    assert after.lacking() == ""
    assert after.outdated("595.58.03")


def test_a_spec_of_an_earlier_agent_is_good_while_its_files_are_there(root: DriverRoot, tmp_path: Path) -> None:
    folder = a_folder(root, tmp_path)
    folder.write(CLAIM)
    written: Any = json.loads(folder.path(CLAIM.uid).read_text())
    library = f"/driver/{FOLDER}/libcuda.so.{VERSION}"
    inside = f"/usr/local/nvidia/lib64/libcuda.so.{VERSION}"
    written["containerEdits"]["mounts"] = [{"hostPath": library, "containerPath": inside, "options": ["ro", "bind"]}]
    folder.path(CLAIM.uid).write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1))
    assert folder.is_current(CLAIM)
    (root.view / FOLDER / f"libcuda.so.{VERSION}").unlink()
    assert not folder.is_current(CLAIM)


def of_a_newer_agent(folder: CdiFolder) -> Any:
    """The claim's spec as a newer agent may write it, with fields that this one does not know, per device and in common."""
    folder.write(CLAIM)
    written: Any = json.loads(folder.path(CLAIM.uid).read_text())
    written["cdiVersion"] = "1.1.0"
    written["annotations"][cdi.FORMAT] = str(cdi.FORMAT_VERSION + 1)
    written["containerEdits"]["netDevices"] = [{"hostInterfaceName": "ib0", "name": "ib0"}]
    written["devices"][0]["containerEdits"]["env"].append("CHANNEL=3")
    written["devices"][0]["containerEdits"]["deviceNodes"].append({"path": "/dev/nvidia-caps-imex-channels/channel3"})
    return written


def put(folder: CdiFolder, spec: Any) -> bytes:
    content = msgspec.json.encode(spec)
    folder.path(CLAIM.uid).write_bytes(content)
    return content


def test_a_spec_of_a_newer_agent_is_left_as_it_is(root: DriverRoot, tmp_path: Path) -> None:
    """After a downgrade, for example: a restarted container of the pod finds the same files as before."""
    folder = a_folder(root, tmp_path)
    put(folder, of_a_newer_agent(folder))
    assert folder.is_current(CLAIM)
    assert folder.claims() == [CLAIM]


def test_a_spec_of_a_newer_agent_is_written_again_if_its_devices_are_others_or_what_it_needs_is_gone(
    root: DriverRoot, tmp_path: Path
) -> None:
    folder = a_folder(root, tmp_path)
    newer = of_a_newer_agent(folder)
    put(folder, newer)
    [device] = CLAIM.devices
    assert not folder.is_current(
        msgspec.structs.replace(CLAIM, devices=[msgspec.structs.replace(device, minor=1)])
    )  # the driver has renumbered the GPU
    closed = json.loads(json.dumps(newer))
    closed["devices"][0]["containerEdits"]["deviceNodes"] = []
    put(folder, closed)
    assert not folder.is_current(CLAIM)
    put(folder, newer)
    (root.view / FOLDER / f"libcuda.so.{VERSION}").unlink()
    assert not folder.is_current(CLAIM)


def test_what_no_agent_wrote_is_not_left(root: DriverRoot, tmp_path: Path) -> None:
    folder = a_folder(root, tmp_path)
    ours = of_a_newer_agent(folder)
    ours["annotations"][cdi.FORMAT] = str(cdi.FORMAT_VERSION)
    put(folder, ours)
    assert not folder.is_current(CLAIM)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("/dev/nvidia0", "/dev/nvidia1"),
        ("GPU-1", "GPU-2"),
        (VOID, "NVIDIA_VISIBLE_DEVICES=all"),
        ('"hooks"', '"unknown"'),
        ("draco.dev/boot-id", "draco.dev/boot"),
    ],
)
def test_a_spec_that_says_anything_else_is_not_current(
    was: str, becomes: str, root: DriverRoot, tmp_path: Path
) -> None:
    a_program(root.view / "usr/bin", "nvidia-cdi-hook", "")
    folder = a_folder(root, tmp_path)
    folder.write(CLAIM)
    content = folder.path(CLAIM.uid).read_text()
    assert was in content
    folder.path(CLAIM.uid).write_text(content.replace(was, becomes))
    assert not folder.is_current(CLAIM)
