"""How long it takes to explain one pending claim, from 100 to 10,000 nodes of 8 GPUs.

Each kind of claim waits for another reason. Measured is the first full explanation, with nearest misses, after a change: of a
slice, of a node, of another claim, and of the claim itself, whose selector is then new. Every change is made several times and
its fastest time counts; the figure is that of the slowest kind of change. It is CPU time, which equals wall time on an idle
processor; wall time is shown beside it, and so is the very first explanation of a new fleet.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Final

from benchmarks.table import Row, tell
from draco.allocation.fleet.fleet import Fleet
from draco.explanation.explain import explain
from draco.explanation.model import Explanation
from draco.resources.api.claims import (
    AllocationResult,
    CelSelector,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from draco.resources.api.core import Node
from draco.resources.api.meta import ObjectMeta
from draco.resources.api.slices import (
    Device,
    DeviceAttribute,
    DeviceCapacity,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)

DRIVER: Final = "gpu.example.com"
GPUS: Final = 8
SIZES: Final = (100, 1_000, 10_000)
TARGET_MS: Final = 50.0
TIMES: Final = 7
MODELS: Final = ("A100", "H100", "H200", "B200")


def a_fleet(nodes: int, *, in_use: Callable[[int, int], bool]) -> Fleet:
    """Nodes with one pool of GPUs each, of four models; every GPU has a PCIe root of its own."""
    fleet = Fleet()
    fleet.put_class(
        DeviceClass(
            metadata=ObjectMeta(name="gpu"), spec=DeviceClassSpec(selectors=[selecting(f'device.driver == "{DRIVER}"')])
        )
    )
    for number in range(nodes):
        name = name_of(number)
        fleet.put_node(Node(metadata=ObjectMeta(name=name)))
        fleet.put_slice(a_slice(number))
        for index in range(GPUS):
            if in_use(number, index):
                fleet.put_claim(holding(name, index))
    return fleet


def name_of(node: int) -> str:
    """The name of a node, its pool and its slice."""
    return f"node-{node:05}"


def a_slice(node: int, memory: str = "80Gi") -> ResourceSlice:
    """The GPUs of a node."""
    name = name_of(node)
    devices = [a_gpu(node, index, memory) for index in range(GPUS)]
    pool = ResourcePool(name=name, resource_slice_count=1)
    spec = ResourceSliceSpec(driver=DRIVER, pool=pool, node_name=name, devices=devices)
    return ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)


def a_gpu(node: int, index: int, memory: str) -> Device:
    """A GPU that differs from all others in its UUID and PCIe root."""
    return Device(
        name=f"gpu-{index}",
        attributes={
            "productName": DeviceAttribute(string=f"NVIDIA {MODELS[node % len(MODELS)]}"),
            "rack": DeviceAttribute(int_=node // 100),
            "uuid": DeviceAttribute(string=f"GPU-{node:05}-{index}"),
            "resource.kubernetes.io/pcieRoot": DeviceAttribute(string=f"pci{node:05}:{index:02}"),
        },
        capacity={"memory": DeviceCapacity(value=memory)},
    )


def holding(node: str, index: int) -> ResourceClaim:
    """A claim that holds one GPU, for a pod."""
    result = DeviceRequestAllocationResult(request="gpu", driver=DRIVER, pool=node, device=f"gpu-{index}")
    return ResourceClaim(
        metadata=ObjectMeta(namespace="team", name=f"{node}-{index}"),
        status=ResourceClaimStatus(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=[result])),
            reserved_for=[ResourceClaimConsumerReference(resource="pods", name=f"pod-{node}-{index}", uid="1")],
        ),
    )


def selecting(expression: str) -> DeviceSelector:
    """A selector."""
    return DeviceSelector(cel=CelSelector(expression=expression))


def a_claim(*, count: int = 1, selector: str = "", matching: str = "") -> ResourceClaim:
    """A claim for GPUs that waits."""
    exactly = ExactDeviceRequest(
        device_class_name="gpu", count=count, selectors=[selecting(selector)] if selector else []
    )
    return ResourceClaim(
        metadata=ObjectMeta(namespace="team", name="waiting"),
        spec=ResourceClaimSpec(
            devices=DeviceClaim(
                requests=[DeviceRequest(name="gpu", exactly=exactly)],
                constraints=[DeviceConstraint(match_attribute=matching)] if matching else [],
            )
        ),
    )


MODEL: Final = f'device.attributes["{DRIVER}"].productName'
UUID: Final = f'device.attributes["{DRIVER}"].uuid'
RACK: Final = f'device.attributes["{DRIVER}"].rack'
MEMORY: Final = f'device.capacity["{DRIVER}"].memory'
KINDS: Final[dict[str, tuple[Callable[[int, int], bool], Callable[[int], ResourceClaim]]]] = {
    "all are in use": (lambda _node, _index: True, lambda new: a_claim(selector=f'{MODEL} != "NVIDIA H{new}"')),
    "the selector matches nothing": (
        lambda _node, index: index < 4,
        lambda new: a_claim(selector=f'{MODEL} == "NVIDIA H100{new}"'),
    ),
    "no device has that UUID": (
        lambda _node, index: index < 4,
        lambda new: a_claim(selector=f'{UUID} == "GPU-X{new}"'),
    ),
    "the device with that UUID is in use": (
        lambda _node, index: index < 4,
        lambda new: a_claim(selector=f'{UUID} == "GPU-{new % 100:05}-2"'),
    ),
    "the selector fails on all": (
        lambda _node, _index: False,
        lambda new: a_claim(selector=f'{MODEL}X == "NVIDIA H{new}"'),
    ),
    "9 wanted, nodes have 8": (
        lambda _node, _index: False,
        lambda new: a_claim(count=9, selector=f'{MODEL} != "NVIDIA H{new}"'),
    ),
    "a constraint fails on all nodes": (
        lambda _node, _index: False,
        lambda new: a_claim(
            count=2, selector=f'{MODEL} != "NVIDIA H{new}"', matching="resource.kubernetes.io/pcieRoot"
        ),
    ),
    "some in use here and there, 8 wanted": (
        lambda node, index: (node * 2654435761 >> 7) % 255 + 1 >> index & 1 == 1,
        lambda new: a_claim(count=8, selector=f'{MEMORY}.compareTo(quantity("{40_000 + new}Mi")) >= 0'),
    ),
    "a constraint that 100 nodes never meet, all in use": (
        lambda _node, _index: True,
        lambda new: a_claim(
            count=2,
            selector=f'{RACK} == 0 && {MODEL} != "NVIDIA H{new}"',
            matching="resource.kubernetes.io/pcieRoot",
        ),
    ),
    "its device is no longer published": (
        lambda _node, index: index < 4,
        lambda _new: holding(name_of(50), GPUS),
    ),
}


class Measured:
    """One fleet with a waiting claim, changed and explained again and again."""

    def __init__(self, nodes: int, in_use: Callable[[int, int], bool], waiting: Callable[[int], ResourceClaim]) -> None:
        self.fleet = a_fleet(nodes, in_use=in_use)
        self.waiting = waiting
        self.number = 0
        self.claim = waiting(0)
        self.other = holding(name_of(nodes // 2), 0)
        self.is_there = self.other.metadata.key in self.fleet.claims
        self.nodes = nodes

    def explained_ms(self) -> tuple[float, float, Explanation]:
        """Milliseconds of CPU time and of wall time, and the explanation."""
        start, start_clock = time.process_time(), time.perf_counter()
        told = explain(self.fleet, [self.claim])
        str(told)
        return (time.process_time() - start) * 1000, (time.perf_counter() - start_clock) * 1000, told

    def slice_changed(self) -> None:
        """The memory of a node's GPUs changes."""
        self.number += 1
        self.fleet.put_slice(a_slice(self.nodes // 3, f"{80 + self.number}Gi"))

    def node_changed(self) -> None:
        """A node gets a label that it did not have."""
        self.number += 1
        name = name_of(self.nodes // 3)
        self.fleet.put_node(Node(metadata=ObjectMeta(name=name, labels={"changed": str(self.number)})))

    def other_claim_changed(self) -> None:
        """A GPU is allocated or becomes free."""
        if self.is_there:
            self.fleet.remove_claim(self.other.metadata.key)
        else:
            self.fleet.put_claim(self.other)
        self.is_there = not self.is_there

    def claim_changed(self) -> None:
        """The claim asks for something that no claim asked for before."""
        self.number += 1
        self.claim = self.waiting(self.number)

    @property
    def changes(self) -> Iterable[Callable[[], None]]:
        """Every kind of change."""
        return (self.slice_changed, self.node_changed, self.other_claim_changed, self.claim_changed)


def main() -> int:
    """Measure every kind of claim at every size."""
    rows = []
    for kind, (in_use, waiting) in KINDS.items():
        taken = {}
        told = None
        for nodes in SIZES:
            measured = Measured(nodes, in_use, waiting)
            first, _, told = measured.explained_ms()
            of_change = {}
            by_clock = 0.0
            for change in measured.changes:
                times = []
                for _ in range(TIMES):
                    change()
                    times.append(measured.explained_ms()[:2])
                of_change[change.__name__.replace("_", " ")] = min(ms for ms, _ in times)
                by_clock = max(by_clock, min(ms for _, ms in times))
            taken[nodes] = max(of_change.values())
            each = ", ".join(f"{name} {ms:.1f}" for name, ms in of_change.items())
            beside = f"wall time {by_clock:.1f}; {each}; the very first {first:.1f}"
            print(f"{kind}, {nodes} nodes: {taken[nodes]:.1f} ms ({beside})", flush=True)
        print(f"  {told.summary if told is not None else ''}\n", flush=True)
        figures = ", ".join(f"{taken[nodes]:.0f} ms at {nodes}" for nodes in SIZES)
        rows.append(Row(f"explain: {kind}", figures, "-", f"<= {TARGET_MS:.0f} ms", taken[SIZES[-1]] <= TARGET_MS))
    tell(*rows)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
