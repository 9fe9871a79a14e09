"""The load of MIG devices: from Hopper on between two readings, and unknown, never 0, where NVML cannot tell it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from draco.agent.hardware.gpus import Gpu
from draco.agent.hardware.nvml import Nvml
from draco.agent.hardware.nvml_gpm import FIRST_MEASURED_S
from draco.agent.hardware.nvml_instances import NvmlInstances
from draco.agent.hardware.nvml_usage import NvmlUsage
from draco_local.simulator.accidents import by_hand, faults
from draco_local.simulator.gpus import state
from draco_local.simulator.gpus.gpu_state import GpuProcess
from draco_local.simulator.nvml.library import SimulatedNvml


class Node:
    """A node with one divided GPU, and the pauses that readings made."""

    def __init__(self, path: Path, board: str = "H100-80GB") -> None:
        self.path = path / "state.json"
        state.create(self.path, node_name="node-1", gpus=1, board=board)
        self.small = "1g.10gb" if board == "H100-80GB" else "1g.5gb"
        self.divide()
        self.pauses: list[float] = []
        self.calls: list[str] = []
        library = SimulatedNvml(self.path, step=self._count)
        self.nvml = Nvml(library)
        self.nvml.open()
        self.usage = NvmlUsage(self.nvml, now=lambda: 0.0, pause=self._pause)
        self.meanwhile: Callable[[], None] = lambda: None

    def divide(self) -> None:
        with state.mutate(self.path) as found:
            found.gpus[0].mig_current = found.gpus[0].mig_pending = 1
        for start in (0, 1):
            self.create(start)

    def create(self, start: int) -> None:
        by_hand.create_instance(self.path, 0, self.small, start=start)

    def destroy_first(self) -> None:
        by_hand.destroy_instance(self.path, 0, min(each.id for each in state.load(self.path).gpus[0].instances))

    def _count(self, point: str) -> None:
        if point.startswith("after nvmlGpm"):
            self.calls.append(point.removeprefix("after nvmlGpm"))

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.meanwhile()

    def gpu(self) -> Gpu:
        [gpu] = self.nvml.gpus()
        instances = NvmlInstances(self.nvml).instances(gpu.uuid)
        return msgspec.structs.replace(gpu, instances=tuple(sorted(instances, key=lambda one: one.gi)))

    def loads(self) -> list[int | None]:
        return [one.utilization for one in self.usage.read(self.gpu())]

    def run(self, pid: int, utilization: int, instance: int = 0) -> None:
        """A process in an instance: the first one has the lowest id."""
        instances = sorted(each.id for each in state.load(self.path).gpus[0].instances)
        where: dict[str, Any] = {"gpu_instance": instances[instance], "compute_instance": 0}
        faults.hold(self.path, 0, GpuProcess(pid, utilization=utilization, **where))

    @property
    def samples(self) -> int:
        """Samples that are allocated, and refused allocations."""
        return self.calls.count("SampleAlloc") - self.calls.count("SampleFree")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_each_instance_has_its_own_load_and_an_idle_one_has_none(node: Node) -> None:
    node.run(11, 60)
    node.run(12, 30)
    assert node.loads() == [90, 0]


def test_the_first_reading_measures_a_moment_once_and_later_ones_since_the_last(node: Node) -> None:
    assert node.loads() == [0, 0]
    assert node.pauses == [FIRST_MEASURED_S]
    node.run(11, 60)
    assert node.loads() == [30, 0], "it began between the two"
    assert node.loads() == [60, 0]
    faults.release(node.path, 11)
    assert node.loads() == [30, 0], "it ran for a part of the time"
    assert node.loads() == [0, 0]
    assert node.pauses == [FIRST_MEASURED_S]
    assert node.samples == 4


def test_boards_before_hopper_tell_nothing_and_are_asked_once(tmp_path: Path) -> None:
    node = Node(tmp_path, "A100-40GB")
    node.run(11, 60)
    assert node.loads() == [None, None]
    assert node.loads() == [None, None]
    assert node.calls == ["QueryDeviceSupport"]


@pytest.mark.parametrize(
    "function", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"]
)
def test_a_refusal_makes_the_load_unknown_once_and_keeps_the_rest(node: Node, function: str) -> None:
    faults.fail(node.path, function, int(pynvml.NVML_ERROR_UNKNOWN), times=2)
    found = node.usage.read(node.gpu())
    assert [one.utilization for one in found] in ([None, None], [None, 0])
    assert all(one.total_bytes for one in found)
    node.loads()
    assert node.loads() == [0, 0]
    refused = 2 if function == "nvmlGpmSampleAlloc" else 0
    assert node.samples - refused == 4


def test_a_driver_without_the_functions_tells_nothing(node: Node) -> None:
    faults.fail(node.path, "nvmlGpmQueryDeviceSupport", int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND), times=None)
    assert node.loads() == [None, None]


def test_an_instance_that_is_made_again_begins_anew_and_the_old_samples_are_freed(node: Node) -> None:
    node.run(11, 60)
    assert node.loads() == [60, 0]
    faults.release(node.path, 11)
    node.destroy_first()
    assert node.loads() == [0]
    assert node.samples == 2
    node.create(0)
    assert node.loads() == [0, 0]
    assert node.samples == 4


def test_after_a_reload_of_the_driver_samples_of_the_old_one_are_left_alone(node: Node) -> None:
    assert node.loads() == [0, 0]
    faults.reload_driver(node.path)
    node.nvml.close()
    node.nvml.open()
    node.divide()
    node.run(11, 50)
    assert node.loads() == [50, 0]
