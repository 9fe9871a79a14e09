"""Who holds an instance according to /proc, and which device nodes open instances."""

import os
from pathlib import Path

import pytest

from draco.agent.hardware.capabilities import Capabilities, CapabilityUnknown
from draco.agent.hardware.gpus import Instance
from draco.agent.mig.holders import Holders, HolderSearch, HoldingProcess, own_pid, place_of, sentence
from draco.resources.names import GpuUuid
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus import procfs, state
from draco_local.simulator.gpus.gpu_state import GpuProcess
from tests.builders import a_gpu

POD = "0f5a2f0e-0000-4000-8000-00000000abcd"
CONTAINER = "ab" * 32


def a_process(
    proc: Path, pid: int, *, comm: str = "python3", cgroup: str = "0::/", files: tuple[str, ...] = (), env: str = ""
) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"{comm}\n")
    (folder / "cgroup").write_text(f"{cgroup}\n")
    (folder / "environ").write_text(env)
    for number, target in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(target)


@pytest.mark.parametrize(
    "cgroup",
    [
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
            f"{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
        ),
        f"0::/kubepods/besteffort/pod{POD}/{CONTAINER}",
        f"12:devices:/kubepods/pod{POD}/{CONTAINER}\n0::/",
        # CRI-O with crun, seen from the cgroup namespace of another container
        f"0::/../../kubepods-besteffort-pod{POD.replace('-', '_')}.slice/crio-{CONTAINER}.scope/container",
        # containerd without systemd as its cgroup driver, on a node whose init is systemd
        f"1:name=systemd:/kubepods-pod{POD.replace('-', '_')}.slice:cri-containerd:{CONTAINER}",
        # cgroups made in the container, and a node that itself runs in a container
        f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope/docker/{'cd' * 32}",
        f"0::/docker/{'ef' * 32}/kubelet/kubepods/pod{POD}/{CONTAINER}",
    ],
)
def test_container_and_pod_are_read_from_the_cgroup_however_it_is_written(tmp_path: Path, cgroup: str) -> None:
    a_process(tmp_path, 7, comm="train", cgroup=cgroup, env="PATH=/bin\0HOSTNAME=train-0\0")
    assert Holders(tmp_path).named([7]) == [
        HoldingProcess(pid=7, command="train", container=CONTAINER, pod=POD, hostname="train-0")
    ]
    [holder] = Holders(tmp_path).named([7])
    assert str(holder) == f"process 7 (train) in container {CONTAINER[:12]} of pod train-0 ({POD})"


def test_a_static_pods_uid_has_no_dashes() -> None:
    uid = POD.replace("-", "")
    assert place_of(f"0::/kubepods/burstable/pod{uid}/{CONTAINER}") == (uid, CONTAINER)


def test_a_containers_name_is_in_what_kubelet_mounts_for_its_pod(tmp_path: Path) -> None:
    a_process(tmp_path, 7)
    mount = "913 896 259:1 {}/pods/{}/containers/{}/1c0ffee /dev/termination-log rw - ext4 /dev/root rw\n"
    mounts = [("/var/lib/kubelet", "1" + POD[1:], "other"), ("/data", POD, "main")]
    (tmp_path / "7" / "mountinfo").write_text("".join(mount.format(*each) for each in mounts))
    assert Holders(tmp_path).container_name(7, POD) == "main"
    assert Holders(tmp_path).container_name(7, "2" + POD[1:]) == ""
    assert Holders(tmp_path).container_name(8, POD) == ""


def test_a_containers_claims_are_in_its_environment(tmp_path: Path) -> None:
    env = "PATH=/bin\0DRACO_CLAIM_1_A=1-a\0DRACO_CLAIM_2_B=2-b\0XDRACO_CLAIM_3=3\0"
    a_process(tmp_path, 7, env=env)
    assert Holders(tmp_path).claims_told(7) == {"1-a", "2-b"}
    assert Holders(tmp_path).claims_told(8) == frozenset()


def test_a_process_of_the_node_itself_is_in_no_pod(tmp_path: Path) -> None:
    a_process(tmp_path, 7, comm="nv-hostengine", cgroup="0::/system.slice/nvidia-dcgm.service", env="HOSTNAME=node-1\0")
    assert sentence(Holders(tmp_path).named([7])) == "process 7 (nv-hostengine)"


def test_a_process_names_itself_without_control_characters(tmp_path: Path) -> None:
    a_process(tmp_path, 7, comm="a\x1b[2J\nb")
    assert sentence(Holders(tmp_path).named([7])) == "process 7 (a\\u001b[2J b)"


def test_a_host_name_that_no_pod_can_have_is_not_told(tmp_path: Path) -> None:
    """A process controls its own environment, and what is read from it goes into the GpuNode that all pods of the node share."""
    a_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{POD}/{CONTAINER}", env=f"HOSTNAME={'a' * 100_000}\0")
    assert (
        sentence(Holders(tmp_path).named([7]))
        == f"process 7 (python3) in container {CONTAINER[:12]} of pod with uid {POD}"
    )


def test_a_process_that_is_gone_is_named_by_its_number(tmp_path: Path) -> None:
    assert sentence(Holders(tmp_path).named([7])) == "process 7"


def test_many_holders_are_counted(tmp_path: Path) -> None:
    for pid in range(1, 6):
        a_process(tmp_path, pid, files=("/dev/nvidia0",))
    named = sentence(Holders(tmp_path, own=5).having_open("/dev/nvidia0"))
    assert named == "process 1 (python3), process 2 (python3), process 3 (python3) and 1 more"
    assert "more" not in sentence(Holders(tmp_path).named([1, 2, 3]))


def test_a_file_that_is_closed_while_it_is_looked_at_hides_no_other(tmp_path: Path) -> None:
    a_process(tmp_path, 7, files=("/dev/nvidia0",))
    for number in range(1, 20):
        (tmp_path / "7" / "fd" / str(number)).write_text("")  # not a link, like a descriptor closed meanwhile
    assert [each.pid for each in Holders(tmp_path).having_open("/dev/nvidia0")] == [7]


def test_where_the_numbers_of_device_nodes_are_not_known_the_whole_gpu_is_looked_at(tmp_path: Path) -> None:
    a_process(tmp_path, 7, comm="monitor", files=("/dev/nvidia0",))
    there = Instance(gpu=GpuUuid("GPU-0"), gi=2, profile_id=19, start=3, size=1, ci=0, uuid="MIG-1")
    search = HolderSearch(Holders(tmp_path), Capabilities(tmp_path))
    assert search(there, a_gpu(0), []) == "a process that NVML does not list, perhaps process 7 (monitor)"


def test_the_agent_knows_itself_among_the_node_s_processes(tmp_path: Path) -> None:
    assert own_pid(tmp_path) == own_pid(Path("/proc")) == os.getpid()
    (tmp_path / "self").symlink_to("4321")
    assert own_pid(tmp_path) == 4321


def test_the_nearest_holder_is_named_and_monitoring_of_the_whole_gpu_only_without_one(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    state.create(path, gpus=1, node_name="node")
    procfs.build(path, state.load(path))
    by_hand.set_mode(path, 0, 1)
    made = by_hand.create_instance(path, 0, "1g.10gb", start=3)
    faults.hold(path, 0, GpuProcess(pid=100, name="monitor", listed=False))
    there = Instance(gpu=GpuUuid("GPU-0"), gi=made.gpu_instance, profile_id=19, start=3, size=1, ci=0, uuid=made.uuid)
    proc = procfs.tree(path)
    search = HolderSearch(Holders(proc), Capabilities(proc))
    assert search(there, a_gpu(0), []) == "a process that NVML does not list, perhaps process 100 (monitor)"
    faults.hold(path, 0, GpuProcess(pid=200, name="shell", listed=False, gpu_instance=made.gpu_instance))
    assert search(there, a_gpu(0), []) == "process 200 (shell)"
    assert search(there, a_gpu(0), [300]) == "process 300"
    assert search(None, a_gpu(0), []) == "process 100 (monitor), process 200 (shell)"


# Device nodes


def test_numbers_are_read_from_the_files_of_instances_where_there_is_no_table(tmp_path: Path) -> None:
    for place, number in (("gi2", 21), ("gi2/ci0", 22)):
        access = tmp_path / "driver/nvidia/capabilities/gpu0/mig" / place / "access"
        access.parent.mkdir(parents=True, exist_ok=True)
        access.write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    paths = Capabilities(tmp_path).paths(0, 2, 0)
    assert paths == ("/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22")
    with pytest.raises(CapabilityUnknown, match="opens instance 3 of GPU 0"):
        Capabilities(tmp_path).paths(0, 3, 0)


def test_a_missing_node_is_made_with_the_driver_s_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "devices").write_text("Character devices:\n  1 mem\n234 nvidia-caps\n")
    made: list[tuple[str, int, int]] = []
    monkeypatch.setattr(os, "mknod", lambda path, mode, device: made.append((str(path), mode, device)))
    Capabilities(tmp_path, tmp_path / "host").ensure("/dev/nvidia-caps/nvidia-cap21")
    assert made == [(str(tmp_path / "host/dev/nvidia-caps/nvidia-cap21"), 0o20444, os.makedev(234, 21))]


def test_a_node_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "devices").write_text("234 nvidia-caps\n")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "mknod", refuse)
    with pytest.raises(CapabilityUnknown, match="nvidia-cap21 is missing and cannot be made: Operation not permitted"):
        Capabilities(tmp_path, tmp_path).ensure("/dev/nvidia-caps/nvidia-cap21")


def test_where_the_kernel_has_no_such_devices_nothing_is_made(tmp_path: Path) -> None:
    Capabilities(tmp_path, tmp_path / "host").ensure("/dev/nvidia-caps/nvidia-cap21")
    assert not (tmp_path / "host").exists()
