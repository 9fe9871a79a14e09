"""A device plugin that also offers a real node's GPUs: what Draco says and does while kubelet counts them."""

import time
from dataclasses import replace
from typing import Final

import pytest

from tests.e2e.conftest import draco
from tests.e2e.kubectl import eventually
from tests.e2e.provider import GPUS
from tests.e2e.real_nodes.device_plugin import RESOURCE, device_plugin
from tests.e2e.real_nodes.pods import DRIVER, WHOLE_GPUS, Bench

pytestmark = [pytest.mark.real_node, pytest.mark.local_provider]

SAID: Final = f"A device plugin gives out {RESOURCE} on this node"
NOTICED_WITHIN_S: Final = 2.0
TRIES: Final = 3
"""A machine busy with other tests may be late, but not every time."""


def tainted(bench: Bench) -> set[str]:
    """The node's devices that are tainted because of the plugin."""
    return {
        device["name"]
        for each in bench.kube.objects("resourceslices")
        if each["spec"].get("nodeName") == bench.node and each["spec"]["driver"] == DRIVER
        for device in each["spec"].get("devices", [])
        if any(taint["key"] == "draco.dev/device-plugin" for taint in device.get("taints", []))
    }


def sole_allocator(bench: Bench) -> tuple[str, str]:
    """The GpuNode's condition about it."""
    conditions = bench.kube.get("gpunode", bench.node)["status"]["conditions"]
    return next((one["status"], one.get("message", "")) for one in conditions if one["type"] == "SoleAllocator")


def counted(bench: Bench) -> str:
    """How many GPUs kubelet can allocate."""
    return str(bench.kube.get("node", bench.node)["status"]["allocatable"].get(RESOURCE, "0"))


def seen(bench: Bench) -> bool:
    status, message = sole_allocator(bench)
    return tainted(bench) == WHOLE_GPUS and status == "False" and SAID in message


def not_seen(bench: Bench) -> bool:
    return not tainted(bench) and sole_allocator(bench)[0] == "True"


def test_a_device_plugin_that_comes_is_noticed_within_two_seconds_and_forgotten_when_it_is_gone(bench: Bench) -> None:
    beside = replace(bench, node=bench.nodes.nodes[-1])  # kubelet keeps the resource of a gone plugin as 0
    eventually(lambda: not_seen(beside), what="the agent is the only one who gives out GPUs")
    noticed_s = float("inf")
    for _ in range(TRIES):
        began_s = time.monotonic()
        with device_plugin(bench.nodes.folder, beside.node, gpus=GPUS):
            eventually(lambda: seen(beside), what="the GPUs are tainted, and GpuNode says why")
            noticed_s = min(noticed_s, time.monotonic() - began_s)
            for command in ("status", "check"):
                done = draco(command, kubeconfig=bench.kube.kubeconfig)
                assert f"{beside.node}: {SAID}" in done.stdout, done.stdout + done.stderr
            eventually(lambda: counted(beside) == str(GPUS), what="kubelet counts GPUs for the plugin")
            assert seen(beside)
        eventually(lambda: not_seen(beside), what="the GPUs are free of the taint again, and GpuNode says so")
        assert counted(beside) == "0"
        if noticed_s <= NOTICED_WITHIN_S:
            break
    assert noticed_s <= NOTICED_WITHIN_S
    assert SAID not in draco("status", kubeconfig=bench.kube.kubeconfig).stdout
