"""The clusters that the benchmarks of allocation measure on, as the objects of Kubernetes' API.

Owns what is in them: nodes of eight GPUs of four models with twelve attributes and capacities, most of them in use; and one node
whose GPUs are published with every partition that they can be cut into.
"""

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec

from draco.allocation.fleet.fleet import Fleet
from draco.resources.api.claims import DeviceClass, ResourceClaim
from draco.resources.api.core import Node
from draco.resources.api.slices import ResourceSlice

Json = dict[str, Any]
DRIVER = "gpu.nvidia.com"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
MODELS = (
    ("NVIDIA A100-SXM4-80GB", "80Gi", "8.0.0", 108),
    ("NVIDIA H100 80GB HBM3", "80Gi", "9.0.0", 132),
    ("NVIDIA H200", "141Gi", "9.0.0", 132),
    ("NVIDIA B200", "180Gi", "10.0.0", 148),
)
SIZES = (100, 1_000, 10_000)
"""Nodes: targets apply to the last, and the others show how the cost grows."""
GPU_CLASS: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}


def node_name(number: int) -> str:
    """Sorted as numbered."""
    return f"node-{number:05}"


def a_node(number: int) -> Json:
    """A Node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(number)}}


def a_gpu(node: int, index: int) -> Json:
    """A whole GPU: ten attributes and two capacities. Its node decides its model; two GPUs share a PCIe root."""
    model, memory, capability, processors = MODELS[node % len(MODELS)]
    return {
        "name": f"gpu-{index}",
        "attributes": {
            "uuid": {"string": f"GPU-{node:08x}-0000-4000-8000-{index:012x}"},
            "productName": {"string": model},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": model.split()[1][:4]},
            "type": {"string": "gpu"},
            "index": {"int": index},
            "cudaComputeCapability": {"version": capability},
            "driverVersion": {"version": "580.95.5"},
            "cudaDriverVersion": {"version": "13.0.0"},
            PCIE_ROOT: {"string": f"pci0000:{index // 2:02x}"},
        },
        "capacity": {"memory": {"value": memory}, "multiprocessors": {"value": str(processors)}},
    }


def a_slice(node: int, devices: Sequence[Json], *, name: str = "", of: int = 1, **spec: Any) -> Json:
    """A slice of a node's pool."""
    pool = {"name": node_name(node), "generation": 1, "resourceSliceCount": of}
    listed = {"devices": devices} if devices else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name(node)}-{name or 'gpus'}"},
        "spec": {"driver": DRIVER, "nodeName": node_name(node), "pool": pool, **listed, **spec},
    }


def holding(name: str, devices: Iterable[tuple[int, str]]) -> Json:
    """A claim that holds devices, each given by its node and name."""
    results = [
        {"request": "gpus", "driver": DRIVER, "pool": node_name(node), "device": device} for node, device in devices
    ]
    return a_claim(name, "true") | {"status": {"allocation": {"devices": {"results": results}}}}


def a_claim(name: str, expression: str, *, count: int = 1, **devices: Any) -> Json:
    """A claim for GPUs that a selector selects; `devices` adds constraints."""
    exactly = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": expression}}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}], **devices}},
    }


def crowded(nodes: int, gpus: int = 8) -> Iterator[Json]:
    """A cluster with 99.9 % of its GPUs in use; only the last node has two free ones on one PCIe root.

    The other free GPUs are spread at random, one on a node; every tenth of these nodes has two, on different roots.
    """
    random = Random(nodes)
    free = {nodes - 1: {gpus - 2, gpus - 1}}
    for number, node in enumerate(random.sample(range(nodes - 1), max(1, nodes * gpus // 1000 - 10))):
        free[node] = {0, gpus - 1} if number % 10 == 0 else {random.randrange(gpus)}
    yield GPU_CLASS
    for node in range(nodes):
        yield a_node(node)
        yield a_slice(node, [a_gpu(node, index) for index in range(gpus)])
        taken = [index for index in range(gpus) if index not in free.get(node, ())]
        yield holding(f"on-{node_name(node)}", [(node, f"gpu-{index}") for index in taken])


_PROFILES = (("1g.10gb", 1, 10, range(7)), ("1g.20gb", 1, 20, range(0, 8, 2)), ("2g.20gb", 2, 20, range(0, 6, 2)),
             ("3g.40gb", 3, 40, (0, 4)), ("4g.40gb", 4, 40, (0,)), ("7g.80gb", 7, 80, (0,)))  # fmt: skip
"""Name, compute slices, GiB of memory, and where an instance may start."""


def a_partitioned_node(gpus: int = 8) -> list[Json]:
    """A node whose GPUs (H100) are published whole and with every partition, which draw from the counters of their GPU.

    Partitions of all GPUs are in use, except some of the last GPU.
    """
    sets: list[Json] = []
    devices: list[Json] = []
    for gpu in range(gpus):
        whole = a_gpu(1, gpu)
        sets.append({"name": f"gpu-{gpu}-counters", "counters": _counters(range(8), 80, 7)})
        devices.append(whole | {"consumesCounters": [_draws(gpu, range(8), 80, 7)]})
        for profile, compute, memory, starts in _PROFILES:
            width = -(-memory // 10)
            for start in starts:
                attributes = {**whole["attributes"], "type": {"string": "mig"}, "profile": {"string": profile}}
                taken = _draws(gpu, range(start, min(start + width, 8)), memory, compute)
                devices.append(
                    {
                        "name": f"gpu-{gpu}-mig-{profile.replace('.', '-')}-{start}",
                        "attributes": attributes,
                        "capacity": {
                            "memory": {"value": f"{memory}Gi"},
                            "multiprocessors": {"value": f"{compute * 16}"},
                        },
                        "consumesCounters": [taken],
                    }
                )
    used = [(0, f"gpu-{gpu}-mig-7g-80gb-0") for gpu in range(gpus - 1)] + [(0, f"gpu-{gpus - 1}-mig-3g-40gb-0")]
    parts = [devices[start : start + 64] for start in range(0, len(devices), 64)]  # the API's limit with counters
    slices = [a_slice(0, part, name=f"part-{number}", of=len(parts) + 1) for number, part in enumerate(parts)]
    counters = a_slice(0, [], name="counters", of=len(parts) + 1, sharedCounters=sets)
    return [GPU_CLASS, a_node(0), *slices, counters, holding("used", used)]


def _counters(slots: Iterable[int], memory: int, compute: int) -> Json:
    slots_taken = {f"memory-slice-{slot}": {"value": "1"} for slot in slots}
    return {"memory": {"value": f"{memory}Gi"}, "multiprocessors": {"value": str(compute * 16)}, **slots_taken}


def _draws(gpu: int, slots: Iterable[int], memory: int, compute: int) -> Json:
    return {"counterSet": f"gpu-{gpu}-counters", "counters": _counters(slots, memory, compute)}


_KINDS: dict[str, Any] = {
    "Node": (Node, Fleet.put_node),
    "ResourceSlice": (ResourceSlice, Fleet.put_slice),
    "DeviceClass": (DeviceClass, Fleet.put_class),
    "ResourceClaim": (ResourceClaim, Fleet.put_claim),
}


def put(fleet: Fleet, *objects: Json) -> None:
    """Put objects into a fleet as an API server would send them: each a tree of its own, decoded from text."""
    for each in objects:
        kind, into = _KINDS[each["kind"]]
        into(fleet, msgspec.json.decode(msgspec.json.encode(each), type=kind))


def claim_of(raw: Json) -> ResourceClaim:
    """A claim as the allocator takes it."""
    return msgspec.convert(raw, ResourceClaim)
