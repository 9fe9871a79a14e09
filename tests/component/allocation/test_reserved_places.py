"""Placement of reservations: by topology, partitions included, and for all claims or none."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from draco.allocation.ownership.claims import nodes_of
from draco.kube.connect.client import Client
from draco.resources.api.claims import ResourceClaim
from draco.resources.api.meta import ObjectKey
from draco.resources.api.reservations import DeviceReservation
from draco.resources.kinds import CLAIMS, DEVICE_RESERVATIONS, MIG_POLICIES, NODES
from tests.component.allocation.lab import ALLOCATING, CLASS, Guarded, events_of, make_claim, until_allocated
from tests.component.allocation.published import publishing
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import running

RACKS = {"sim-0": "a", "sim-1": "b", "sim-2": "a"}
GPUS = 2
RACK = "example.com/rack"


@pytest.fixture
async def racks(handed_over: Client) -> AsyncIterator[Client]:
    """Three nodes with two GPUs each, all Draco's; two of the nodes are in one rack."""
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"nodeSelector": None}})
    async with publishing(handed_over, list(RACKS), GPUS):
        for node, rack in RACKS.items():
            await handed_over.patch(NODES, ObjectKey("", node), {"metadata": {"labels": {RACK: rack}}})
        yield handed_over


async def reserve(client: Client, namespace: str, name: str, asked: dict[str, Any] | None = None, **spec: Any) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS, **(asked or {})}}
    spec["template"] = {"spec": {"devices": {"requests": [request]}}}
    await client.create(DEVICE_RESERVATIONS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


async def claims_of(client: Client, namespace: str, name: str) -> list[ResourceClaim]:
    claims = await client.list(CLAIMS, namespace=namespace)
    return [each for each in claims if each.metadata.name.startswith(f"{name}-")]


async def until_placed(client: Client, namespace: str, name: str, number: int) -> list[str]:
    """Wait until this many of its claims have devices; returns their nodes."""

    async def look() -> list[ResourceClaim] | None:
        found = [each for each in await claims_of(client, namespace, name) if each.status.allocation]
        return found if len(found) == number else None

    return sorted(node for each in await until(look, what=f"{number} of {name}") for node in nodes_of(each))


async def until_said(client: Client, namespace: str, name: str, *words: str) -> DeviceReservation:
    async def look() -> DeviceReservation | None:
        found = await client.get(DEVICE_RESERVATIONS, ObjectKey(namespace, name))
        return found if all(word in found.status.message for word in words) else None

    return await until(look, what=f"a status of {name} with {words}")


async def until_told(client: Client, namespace: str, name: str, *words: str) -> None:
    """Wait until the first claim's Event says this."""

    async def look() -> bool:
        told = await events_of(client, namespace, f"{name}-0", "GroupWaiting")
        return any(all(word in each for word in words) for each in told)

    await until(look, what=f"an Event of {name} with {words}")


async def end(client: Client, namespace: str, name: str) -> None:
    await client.delete(DEVICE_RESERVATIONS, ObjectKey(namespace, name))

    async def gone() -> bool:
        return not await claims_of(client, namespace, name)

    await until(gone, what=f"the end of {name}")


async def test_each_topology_is_honoured(guarded: Guarded, racks: Client, namespace: str) -> None:
    async with an_operator(guarded, ALLOCATING):
        for name, topology, count, nodes in (
            ("rack", RACK, 4, ["sim-0", "sim-0", "sim-2", "sim-2"]),
            ("spread", "spread", 3, ["sim-0", "sim-1", "sim-2"]),
        ):
            await reserve(racks, namespace, name, count=count, topology=topology)
            assert await until_placed(racks, namespace, name, count) == nodes
            await end(racks, namespace, name)
        for topology in ("sameNode", "sameNVLinkDomain"):  # a node without an NVLink fabric is its own domain
            name = topology.lower()
            await reserve(racks, namespace, name, count=2, topology=topology)
            assert len(set(await until_placed(racks, namespace, name, 2))) == 1


async def test_what_a_topology_or_the_cluster_has_no_room_for_holds_nothing_and_says_so(
    guarded: Guarded, racks: Client, namespace: str
) -> None:
    """A later claim of another tenant gets its device: nothing is held meanwhile."""
    impossible = {
        "node": ("sameNode", 3, "within one sameNode; even if nobody else had any, only 2 of 3 get some"),
        "fabric": ("sameNVLinkDomain", 3, "within one sameNVLinkDomain; even if nobody else had any, only 2 of 3"),
        "rack": (RACK, 5, f"within one {RACK}; even if nobody else had any, only 4 of 5 get some"),
        "spread": ("spread", 4, "even if nobody else had any, only 3 of 4 get some"),
        "label": ("example.com/row", 2, "No node that the group may run on has the label example.com/row"),
        "many": ("", 7, "even if nobody else had any, only 6 of 7 get some"),
    }
    async with an_operator(guarded, ALLOCATING):
        for name, (topology, count, _) in impossible.items():
            within: dict[str, Any] = {"topology": topology} if topology else {}
            await reserve(racks, namespace, name, count=count, **within)
        for name, (_, count, said) in impossible.items():
            await until_said(
                racks, namespace, name, f"0 of {count} claims have devices", f"Event GroupWaiting of claim {name}-0"
            )
            await until_told(racks, namespace, name, said)
        for number in range(len(RACKS) * GPUS):
            await make_claim(racks, namespace, f"other-{number}")
            await until_allocated(racks, namespace, f"other-{number}")


async def test_a_reservation_that_fits_in_part_gets_all_its_devices_once_there_is_room(
    guarded: Guarded, racks: Client, namespace: str
) -> None:
    """Even without a topology. If its count grows, it keeps the devices that it has."""
    async with an_operator(guarded, ALLOCATING):
        for number in range(4):
            await make_claim(racks, namespace, f"other-{number}")
            await until_allocated(racks, namespace, f"other-{number}")
        await reserve(racks, namespace, "half", count=4)
        await until_said(racks, namespace, "half", "0 of 4 claims have devices", "together")
        assert not [each for each in await claims_of(racks, namespace, "half") if each.status.allocation]
        for number in range(2):
            await racks.delete(CLAIMS, ObjectKey(namespace, f"other-{number}"))
        await until_placed(racks, namespace, "half", 4)
        await racks.delete(CLAIMS, ObjectKey(namespace, "other-2"))
        await racks.patch(DEVICE_RESERVATIONS, ObjectKey(namespace, "half"), {"spec": {"count": 6}})
        await until_said(racks, namespace, "half", "4 of 6 claims have devices", "together")
        await racks.delete(CLAIMS, ObjectKey(namespace, "other-3"))
        await until_placed(racks, namespace, "half", 6)


async def test_partitions_are_reserved_on_one_node_or_not_at_all(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    """Eight GPUs have room for sixteen such partitions, two on each."""
    await handed_over.patch(MIG_POLICIES, ObjectKey("", "draco"), {"spec": {"mode": "Dynamic"}})
    selector = {"cel": {"expression": 'device.attributes["gpu.nvidia.com"].profile == "3g.40gb"'}}
    asked = {"deviceClassName": "mig.draco.dev", "selectors": [selector]}
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        await reserve(handed_over, namespace, "many", asked, count=17, topology="sameNode")
        await until_said(handed_over, namespace, "many", "0 of 17 claims have devices", "together")
        await reserve(handed_over, namespace, "few", asked, count=3, topology="sameNode")
        assert set(await until_placed(handed_over, namespace, "few", 3)) == {"sim-1"}
        devices = [each.device for claim in await claims_of(handed_over, namespace, "few") for each in claim.results]
        assert len(set(devices)) == 3
        assert all("3g" in each for each in devices)
        assert not [each for each in await claims_of(handed_over, namespace, "many") if each.status.allocation]
