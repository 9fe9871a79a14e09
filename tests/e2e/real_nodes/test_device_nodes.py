"""A real node before the first nvidia-smi: the driver is loaded, but no device nodes exist."""

import json
from collections.abc import Iterator
from typing import Final

import pytest

from draco_local.cluster.realnode.agent import gpu_state_file
from draco_local.cluster.realnode.nodes import disk_of
from draco_local.simulator.gpus import procfs
from tests.e2e.kubectl import eventually
from tests.e2e.provider import GPUS
from tests.e2e.real_nodes.machines import service_pid
from tests.e2e.real_nodes.pods import STARTS_WITHIN_S, Bench, claim, pod

pytestmark = [pytest.mark.real_node, pytest.mark.local_provider]

UVM_TOOLS: Final = "/dev/nvidia-uvm-tools"
SHARED: Final = ("/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", UVM_TOOLS)
ALL: Final = (*(f"/dev/nvidia{minor}" for minor in range(GPUS)), *SHARED)
KERNELS_LIST: Final = (
    "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n259 blkext\n"
)


def nodes_of(bench: Bench, name: str) -> set[str]:
    """Device nodes in the claim's CDI spec."""
    spec = json.loads(bench.on_node("cat", *(file for file in bench.spec_files() if bench.uid(name) in file)))
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    return {node["path"] for each in edits for node in each.get("deviceNodes", [])}


def numbers(bench: Bench, *paths: str) -> dict[str, str]:
    """Major and minor numbers of device nodes on the node, in hexadecimal."""
    found = bench.on_node("stat", "--format=%n %t:%T", *paths).splitlines()
    return dict(line.split() for line in found)


def made_by_hand(bench: Bench, path: str, major: int, minor: int) -> None:
    # Put in place at once: the agent makes what is missing.
    bench.on_node("mknod", "-m", "666", f"{path}.new", "c", str(major), str(minor))
    bench.on_node("mv", "-f", f"{path}.new", path)


@pytest.fixture
def bare(bench: Bench) -> Iterator[Bench]:
    """The node lacks the device nodes of its GPUs, its kernel lists their numbers, and nobody can create nodes."""
    listed = procfs.tree(gpu_state_file(disk_of(bench.nodes.folder, bench.node))) / "devices"
    listed.write_text(KERNELS_LIST)
    bench.on_node("rm", *ALL)
    bench.on_node("mount", "-o", "remount,ro", "/dev")
    try:
        yield bench
    finally:
        listed.unlink()
        bench.on_node("mount", "-o", "remount,rw", "/dev")
        for path in ALL:
            made_by_hand(bench, path, 1, 3)  # as if the node had booted with them


def test_device_nodes_that_nobody_made_are_made_for_the_first_claim_or_it_waits(bare: Bench) -> None:
    bench = bare
    agent = service_pid(bench.nodes, bench.node, "agent")
    bench.apply([claim("one"), pod("one", node=bench.node, claims="one")])
    refused = "is missing and cannot be made: Read-only file system"
    said = eventually(
        lambda: [each for each in bench.kube.notes("one", "Pod") if refused in each],
        within_s=STARTS_WITHIN_S,
        what="an Event of the pod says why it waits",
    )
    assert "run `nvidia-modprobe" in said[0]
    assert bench.spec_files() == []

    bench.on_node("mount", "-o", "remount,rw", "/dev")
    bench.wait("one")
    own = bench.device("one").replace("gpu-", "/dev/nvidia")
    assert nodes_of(bench, "one") == {own, *SHARED}
    assert numbers(bench, own, *SHARED) == {
        own: f"c3:{int(own.removeprefix('/dev/nvidia')):x}",
        "/dev/nvidiactl": "c3:ff",
        "/dev/nvidia-modeset": "c3:fe",
        "/dev/nvidia-uvm": "1ff:0",
        UVM_TOOLS: "1ff:1",
    }
    assert bench.gpu_nodes("one") == {own.removeprefix("/dev/")}

    for minor in range(GPUS):
        made_by_hand(bench, f"/dev/nvidia{minor}", 195, minor)
    bench.on_node("sh", "-c", f"rm {UVM_TOOLS} && mount -o remount,ro /dev")  # at once: the agent makes what is missing
    bench.start("two")
    own = bench.device("two").replace("gpu-", "/dev/nvidia")
    assert nodes_of(bench, "two") == {own, *SHARED} - {UVM_TOOLS}, "no reason to refuse the claim"

    bench.on_node("mount", "-o", "remount,rw", "/dev")
    made_by_hand(bench, UVM_TOOLS, 511, 1)
    bench.start("three")
    assert UVM_TOOLS in nodes_of(bench, "three")
    assert service_pid(bench.nodes, bench.node, "agent") == agent, "the agent was not started again"
