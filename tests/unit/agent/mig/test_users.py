"""Whose processes keep a device from the next claim and whose do not, on simulated NVML and a simulated /proc."""

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from draco.agent.errors import InstanceHeld, PrepareError
from draco.agent.mig.claim_instances import PATIENCE_S
from draco.agent.mig.users import UNKNOWN_S
from draco.mig.keeping import KeptInstances
from draco.resources.api.claims import ResourceClaim
from draco.resources.names import GpuUuid
from draco_local.simulator.accidents import faults
from draco_local.simulator.gpus import procfs, state
from draco_local.simulator.gpus.gpu_state import GpuProcess
from tests.builders import a_claim, a_uid, as_shares
from tests.unit.agent.mig_node import MigNode, a_mig_claim, build, names

WHOLE = "node-0/gpu-0"
PART = f"node-0/{names([(9, 4)])[0]}"
CONTAINER = "ab" * 32


def claim(name: str, device: str, *pods: str) -> ResourceClaim:
    return a_claim(name, on=[device], reserved_for=pods)


def in_pod(pod: str, pid: int = 4711, **fields: object) -> GpuProcess:
    cgroup = f"/kubepods/besteffort/pod{a_uid('pod', 'default', pod)}/{CONTAINER}"
    return msgspec.structs.replace(GpuProcess(pid, cgroup=cgroup, hostname=pod, name="train"), **fields)


@pytest.fixture(params=[WHOLE, PART], ids=["a whole GPU", "a partition"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Node(MigNode):
    """A node whose /proc follows its processes."""

    def __init__(self, folder: Path, **options: object) -> None:
        path = folder / "gpus.json"
        super().__init__(folder, proc=procfs.build(path, state.load(path)), **options)  # type: ignore[arg-type]

    def hold(self, process: GpuProcess) -> None:
        """Start the process on the instance, or on the whole GPU if there is none."""
        for one in self.hardware().instances[:1]:
            process = msgspec.structs.replace(process, gpu_instance=one.id, compute_instance=0)
        faults.hold(self.path, 0, process)

    def given_up(self, claim: ResourceClaim) -> None:
        """Have kubelet unprepare the claim, and repeat it after a refusal."""
        for _ in range(2):
            try:
                self.unprepare(claim)
            except InstanceHeld:
                self.now_s += PATIENCE_S
        assert not self.record.claims
        assert self.specs() == {}


@pytest.fixture
def node(tmp_path: Path, device: str) -> Node:
    build(tmp_path, mig=device == PART)
    return Node(tmp_path)


def uuid_of(node: Node) -> str:
    instances = node.hardware().instances
    return instances[0].compute[0].uuid if instances else node.uuid


# A claim that is unprepared while its process runs


def test_a_device_goes_to_nobody_else_for_as_long_as_a_process_of_its_last_claim_runs(node: Node, device: str) -> None:
    node.prepare(claim("first", device, "a"))
    node.hold(in_pod("a"))
    node.given_up(claim("first", device, "a"))
    for _ in range(3):
        with pytest.raises(PrepareError, match=r"process 4711 .*train.*pod a"):
            node.prepare(claim("other", device, "b"))
        node.now_s += 10 * UNKNOWN_S
    faults.release(node.path, 4711)
    node.prepare(claim("other", device, "b"))


def test_the_refusal_names_process_container_and_pod(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = Node(tmp_path)
    node.hold(in_pod("a"))
    with pytest.raises(PrepareError) as refusal:
        node.prepare(claim("other", WHOLE, "b"))
    assert str(refusal.value) == (
        "Claim default/other cannot get gpu-0 yet: process 4711 of an earlier user still runs on it (train, in container "
        f"abababababab of pod a ({a_uid('pod', 'default', 'a')})); end that process, and kubelet tries again."
    )


@pytest.mark.parametrize("again", ["the same agent", "another agent", "at once, and kubelet never went on"])
def test_the_same_claim_gets_its_device_back_under_its_process(node: Node, device: str, again: str) -> None:
    first = claim("first", device, "a")
    before = node.prepare(first).devices
    node.hold(in_pod("a"))
    if again.startswith("at once"):
        with suppress(InstanceHeld):
            node.unprepare(first)
    else:
        node.given_up(first)
    node = Node(node.folder) if again == "another agent" else node
    assert node.prepare(first).devices == before
    assert len(node.specs()) == 1
    assert not node.mig.divisions[node.uuid].dirty
    with pytest.raises(PrepareError, match="still prepared for claim default/first"):
        node.prepare(claim("other", device, "b"))


def test_a_process_that_nothing_tells_of_is_that_of_the_claim_that_had_the_device_last(node: Node, device: str) -> None:
    before = node.prepare(claim("first", device)).devices
    node.hold(GpuProcess(4711))
    node.given_up(claim("first", device))
    with pytest.raises(PrepareError, match="process 4711 of an earlier user still runs on it"):
        node.prepare(claim("other", device))
    assert node.prepare(claim("first", device)).devices == before


def test_after_a_restart_with_a_lost_record_the_process_is_in_the_way_still(node: Node, device: str) -> None:
    node.keep = KeptInstances(counts={9: 1})  # otherwise NVML refuses to destroy the instance, which blocks the claim
    node.prepare(claim("first", device, "a"))
    node.hold(in_pod("a"))
    node.unprepare(claim("first", device, "a"))
    if device == WHOLE:
        (node.folder / "state" / "checkpoint.json").unlink()
    again = Node(node.folder)
    again.keep = node.keep
    with pytest.raises(PrepareError, match="process 4711 of an earlier user still runs on it"):
        again.prepare(claim("other", device, "b"))


def test_a_container_that_was_given_the_device_and_does_not_use_it_now_is_in_the_way_too(
    node: Node, device: str
) -> None:
    node.keep = KeptInstances(counts={9: 1})
    node.prepare(claim("first", device, "a"))
    told = {"DRACO_DEVICE_GPU_0": uuid_of(node)}
    node.hold(in_pod("late", listed=False, variables=told))  # a pod that started sharing the claim later
    node.unprepare(claim("first", device, "a"))
    with pytest.raises(PrepareError, match="process 4711 of an earlier user"):
        node.prepare(claim("other", device, "b"))
    with pytest.raises(PrepareError, match="process 4711 of an earlier user"):
        node.desk.prepare_unasked(claim("other", device, "b"), node.named) if device == WHOLE else node.prepare(
            claim("other", device, "b")
        )
    faults.release(node.path, 4711)
    node.prepare(claim("other", device, "b"))


def test_who_last_had_a_part_of_a_gpu_says_nothing_of_all_of_it(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = Node(tmp_path)
    node.prepare(claim("first", WHOLE))
    node.unprepare(claim("first", WHOLE))
    node.prepare(a_mig_claim("part", *names([(9, 4)])))
    node.unprepare(a_mig_claim("part", *names([(9, 4)])))
    assert [one.name for one in node.record.last_users.values()] == ["part"]
    node.prepare(claim("second", WHOLE))
    node.unprepare(claim("second", WHOLE))
    assert list(node.record.last_users) == [node.uuid]


# Other processes that may run there


def test_what_only_keeps_the_device_open_is_in_nobodys_way(node: Node, device: str) -> None:
    faults.hold(node.path, 0, in_pod("dcgm-exporter", listed=False))
    faults.hold(node.path, 0, GpuProcess(4712, name="nvidia-persiste", listed=False))
    node.prepare(claim("first", device))


def test_a_process_in_no_container_is_waited_for_once_and_then_it_is_the_nodes_own(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = Node(tmp_path)
    server = GpuProcess(4711, name="nvidia-cuda-mps", cgroup="/system.slice/mps.service")
    node.hold(server)
    for _ in range(2):
        with pytest.raises(PrepareError, match=r"process 4711 .*\(nvidia-cuda-mps\)"):
            node.prepare(claim("first", WHOLE))
        node.now_s += UNKNOWN_S / 2
    node.prepare(claim("first", WHOLE))
    node.unprepare(claim("first", WHOLE))
    node.prepare(claim("second", WHOLE))
    node.unprepare(claim("second", WHOLE))
    faults.release(node.path, 4711)
    node.prepare(claim("third", WHOLE))
    node.unprepare(claim("third", WHOLE))
    node.hold(server)  # another process with the same PID
    with pytest.raises(PrepareError, match="process 4711"):
        node.prepare(claim("fourth", WHOLE))


def test_a_process_of_which_nothing_can_be_read_is_in_the_way_for_as_long_as_it_runs(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = MigNode(tmp_path)  # its /proc shows no processes
    faults.hold(node.path, 0, GpuProcess(4711))
    for _ in range(2):
        with pytest.raises(PrepareError, match="process 4711 of an earlier user still runs on it; end"):
            node.prepare(claim("first", WHOLE))
        node.now_s += 2 * UNKNOWN_S


def test_who_looks_on_by_administrative_access_is_in_nobodys_way_and_waits_for_nobody(node: Node, device: str) -> None:
    node.prepare(claim("first", device, "a"))
    node.hold(in_pod("a"))
    watch = a_claim("watch", on=[device], admin_access=True, reserved_for=["watcher"])
    node.prepare(watch)
    told = {"DRACO_DEVICE_GPU_0": uuid_of(node)}
    faults.release(node.path, 4711)
    node.hold(in_pod("watcher", variables=told))
    node.hold(in_pod("who-came-later", 4713, listed=False, variables=told))
    node.unprepare(claim("first", device, "a"))
    node.prepare(claim("other", device, "b"))


def test_beside_administrative_access_pods_of_the_last_claim_are_in_the_way_and_others_for_a_while(
    tmp_path: Path,
) -> None:
    build(tmp_path, mig=False)
    node = Node(tmp_path)
    node.prepare(claim("first", WHOLE, "a"))
    node.prepare(a_claim("watch", on=[WHOLE], admin_access=True))
    node.hold(in_pod("a", listed=False, variables={"DRACO_DEVICE_GPU_0": node.uuid}))
    node.unprepare(claim("first", WHOLE, "a"))
    node.now_s += 2 * UNKNOWN_S
    with pytest.raises(PrepareError, match="process 4711"):
        node.prepare(claim("other", WHOLE))
    faults.release(node.path, 4711)
    node.hold(in_pod("who-came-later"))
    with pytest.raises(PrepareError, match="process 4711"):
        node.prepare(claim("other", WHOLE))
    node.now_s += UNKNOWN_S
    node.prepare(claim("other", WHOLE))


def test_where_nvml_does_not_say_who_runs_on_a_gpu_those_count_that_were_given_it(tmp_path: Path) -> None:
    build(tmp_path, mig=False)
    node = Node(tmp_path)
    faults.fail(node.path, "nvmlDeviceGetComputeRunningProcesses", 999)
    node.hold(in_pod("a", variables={"DRACO_DEVICE_GPU_0": GpuUuid(node.uuid)}))
    with pytest.raises(PrepareError, match="process 4711"):
        node.prepare(claim("other", WHOLE))


# Shares


def a_share(name: str, device: str, *pods: str) -> ResourceClaim:
    return as_shares(claim(name, device, *pods), f"of-{name}", memory="10Gi")


def test_a_share_is_given_out_beside_the_processes_of_other_shares(node: Node, device: str) -> None:
    node.prepare(a_share("first", device, "a"))
    node.hold(in_pod("a"))
    node.prepare(a_share("second", device, "b"))
    assert len(node.specs()) == 2


def test_a_process_of_a_claim_that_had_the_device_alone_keeps_it_from_shares(node: Node, device: str) -> None:
    node.prepare(claim("first", device, "a"))
    node.hold(in_pod("a"))
    node.given_up(claim("first", device, "a"))
    with pytest.raises(PrepareError, match="process 4711 of an earlier user still runs on it"):
        node.prepare(a_share("second", device, "b"))


def test_a_process_of_a_share_keeps_the_device_from_a_claim_that_has_it_alone(node: Node, device: str) -> None:
    node.prepare(a_share("first", device, "a"))
    node.hold(in_pod("a"))
    node.given_up(a_share("first", device, "a"))
    with pytest.raises(PrepareError, match="process 4711 of an earlier user still runs on it"):
        node.prepare(claim("second", device, "b"))
