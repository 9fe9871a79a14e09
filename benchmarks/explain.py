"""How long it takes to explain one pending claim, from 100 to 10,000 nodes of 8 GPUs.

Each kind of claim is one that waits for another reason. What is measured is one explanation of a fleet that is known already, as
the operator asks for it after a change; the first one of a new fleet is shown beside it.
"""

import sys
import time
from collections.abc import Callable
from typing import Final

from benchmarks.table import Row, tell
from draco.allocation.fleet import Fleet
from draco.explanation.explain import explain
from draco.explanation.model import Explanation
from draco.resources.claims import (
    AllocationResult,
    CelSelector,
    DeviceAllocationResult,
    DeviceClaim,
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
from draco.resources.classes import DeviceClass, DeviceClassSpec
from draco.resources.core import Node
from draco.resources.meta import ObjectMeta
from draco.resources.slices import (
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
TARGET_MS: Final = 100.0
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
        name = f"node-{number:05}"
        fleet.put_node(Node(metadata=ObjectMeta(name=name)))
        devices = [a_gpu(number, index) for index in range(GPUS)]
        pool = ResourcePool(name=name, resource_slice_count=1)
        spec = ResourceSliceSpec(driver=DRIVER, pool=pool, node_name=name, devices=devices)
        fleet.put_slice(ResourceSlice(metadata=ObjectMeta(name=name), spec=spec))
        for index in range(GPUS):
            if in_use(number, index):
                fleet.put_claim(holding(name, index))
    return fleet


def a_gpu(node: int, index: int) -> Device:
    """A GPU that differs from all others in its UUID and PCIe root."""
    return Device(
        name=f"gpu-{index}",
        attributes={
            "productName": DeviceAttribute(string=f"NVIDIA {MODELS[node % len(MODELS)]}"),
            "uuid": DeviceAttribute(string=f"GPU-{node:05}-{index}"),
            "resource.kubernetes.io/pcieRoot": DeviceAttribute(string=f"pci{node:05}:{index:02}"),
        },
        capacity={"memory": DeviceCapacity(value="80Gi")},
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
MEMORY: Final = f'device.capacity["{DRIVER}"].memory'
KINDS: Final[dict[str, tuple[Callable[[int, int], bool], ResourceClaim]]] = {
    "all are in use": (lambda _node, _index: True, a_claim()),
    "the selector matches nothing": (lambda _node, index: index < 4, a_claim(selector=f'{MODEL} == "NVIDIA H1000"')),
    "the selector fails on all": (lambda _node, _index: False, a_claim(selector=f'{MODEL}X == "NVIDIA H100"')),
    "9 wanted, nodes have 8": (lambda _node, _index: False, a_claim(count=9)),
    "a constraint fails on all nodes": (
        lambda _node, _index: False,
        a_claim(count=2, matching="resource.kubernetes.io/pcieRoot"),
    ),
    "some in use here and there, 8 wanted": (
        lambda node, index: (node * 2654435761 >> 7) % 255 + 1 >> index & 1 == 1,
        a_claim(count=8, selector=f'{MEMORY}.compareTo(quantity("40Gi")) >= 0'),
    ),
}


def main() -> int:
    """Measure every kind of claim at every size."""
    rows = []
    text = ""
    for kind, (in_use, claim) in KINDS.items():
        taken = {}
        for nodes in SIZES:
            fleet = a_fleet(nodes, in_use=in_use)
            first, text = timed(lambda: explain(fleet, [claim]))  # noqa: B023 - called at once
            taken[nodes] = min(timed(lambda: explain(fleet, [claim]))[0] for _ in range(TIMES))  # noqa: B023 - at once
            print(f"{kind}, {nodes} nodes: {taken[nodes]:.1f} ms, first {first:.1f} ms", flush=True)
        print(f"  {text}\n", flush=True)
        measured = ", ".join(f"{taken[nodes]:.1f} ms at {nodes}" for nodes in SIZES)
        rows.append(Row(f"explain: {kind}", measured, "-", f"<= {TARGET_MS:.0f} ms", taken[SIZES[-1]] <= TARGET_MS))
    tell(*rows)
    return 0 if all(row.met for row in rows) else 1


def timed(work: Callable[[], Explanation]) -> tuple[float, str]:
    """Milliseconds, and what came out."""
    start = time.perf_counter()
    told = work()
    return (time.perf_counter() - start) * 1000, str(told)


if __name__ == "__main__":
    sys.exit(main())
