"""Equal parts of slices and nodes are stored once, and every object stays equal to what was published."""

import msgspec

from draco.resources.api.core import Node
from draco.resources.api.slices import ResourceSlice
from draco.resources.written.sharing import Shared
from tests.builders import a_claim, a_node
from tests.mig_claims import a_mig_pool


def again(obj: ResourceSlice) -> ResourceSlice:
    """A copy, as if decoded from another response."""
    return msgspec.json.decode(msgspec.json.encode(obj), type=ResourceSlice)


def test_partitions_of_many_nodes_share_all_that_is_equal() -> None:
    shared = Shared()
    published = [each for name in ("node-0", "node-1") for each in a_mig_pool(name, 2)]
    kept = [shared.of(again(each)) for each in published]
    assert kept == published
    devices = [device for each in kept for device in each.spec.devices]
    partitions = [device for device in devices if device.consumes_counters]
    counters = {id(consumed.counters) for device in partitions for consumed in device.consumes_counters}
    assert len(counters) < len(partitions) / 3
    memory = {id(device.capacity["memory"]) for device in devices}
    assert len(memory) == len({device.capacity["memory"].value for device in devices})


def labelled(number: int) -> Node:
    node = a_node(f"node-{number}")
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels={"model": "H100 SXM5"}))


def test_labels_of_nodes_are_shared() -> None:
    shared = Shared()
    nodes = [shared.of(msgspec.json.decode(msgspec.json.encode(labelled(number)), type=Node)) for number in (1, 2)]
    assert nodes == [labelled(1), labelled(2)]
    assert len({id(node.metadata.labels["model"]) for node in nodes}) == 1


def test_what_passes_through_is_forgotten_in_time_and_other_kinds_are_left_alone() -> None:
    shared = Shared()
    for number in range(30_000):
        shared._part(f"uuid-{number}")
    assert len(shared._parts) <= 20_000
    claim = a_claim()
    assert shared.of(claim) is claim
