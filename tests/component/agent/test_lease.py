"""The agent's lease on a real API server: when it is renewed, and when not."""

import asyncio
import time
import uuid
from contextlib import suppress
from itertools import pairwise

import pytest

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.core import Lease
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import GPU_NODES, LEASES, NODES
from draco.resources.names import LABEL_AGENT_LEASE, LONGEST_NAME, NVIDIA_DRIVER, agent_lease_name
from draco_local.simulator.accidents import faults
from tests.agents import SimulatedNode, eventually
from tests.component.agent.test_handover import an_agent, ended, kubelet_of
from tests.doubles.faultproxy import FaultProxy, answer, drop

pytestmark = pytest.mark.usefixtures("crds")

LEASE_S = 2
BETWEEN_S = LEASE_S / 4
"""The longest time between two renewals; the shortest is three quarters of that."""
FOLLOWED_S = 8
"""The lease duration during a handover. The next agent's start takes part of it, more on a busy machine. The default is 20 s."""


def leases(node: SimulatedNode, duration_s: int = LEASE_S) -> dict[str, object]:
    return {"namespace": node.namespace, "lease_duration_s": duration_s}


def key(node: SimulatedNode) -> ObjectKey:
    return ObjectKey(node.namespace, agent_lease_name(node.name))


async def lease_of(node: SimulatedNode) -> Lease | None:
    with suppress(NotFound):
        return await node.client.get(LEASES, key(node))
    return None


async def renewals(node: SimulatedNode, for_s: float, *, until: str = "") -> list[tuple[float, str]]:
    """Time and holder of each change of the lease, for `for_s` seconds or until its holder is `until`."""
    found: list[tuple[float, str]] = []
    last = await lease_of(node)
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline and not (until and found and found[-1][1] == until):
        lease = await lease_of(node)
        if lease is not None and (last is None or lease.spec != last.spec):
            found.append((time.monotonic(), lease.spec.holder_identity or ""))
            last = lease
        await asyncio.sleep(0.02)
    return found


async def renewed(node: SimulatedNode) -> Lease:
    """The lease, once it has changed."""
    before = await lease_of(node)

    async def look() -> Lease | None:
        lease = await lease_of(node)
        return lease if lease != before else None

    found: Lease = await eventually(look)
    return found


def longest_gap(found: list[tuple[float, str]]) -> float:
    times = [when for when, _ in found]
    return max(later - earlier for earlier, later in pairwise(times))


async def test_the_lease_is_the_nodes_and_renewed_four_times_in_its_duration(node: SimulatedNode) -> None:
    async with node.running(**leases(node), lease_holder="pod-1"):
        lease = await renewed(node)
        uid = (await node.client.get(NODES, ObjectKey("", node.name))).metadata.uid
        assert [(each.kind, each.uid) for each in lease.metadata.owner_references] == [("Node", uid)]
        assert lease.metadata.labels[LABEL_AGENT_LEASE] == NVIDIA_DRIVER
        assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("pod-1", LEASE_S)
        assert len(await renewals(node, 2 * LEASE_S)) >= 6


async def test_without_a_namespace_there_is_no_lease(node: SimulatedNode) -> None:
    async with node.running():
        await node.published(2)
        assert await lease_of(node) is None


@pytest.mark.parametrize("code", [409, 429, 500, 503, 0])
async def test_a_renewal_that_fails_is_tried_again_before_the_lease_runs_out(
    node: SimulatedNode, proxy: FaultProxy, code: int
) -> None:
    async with node.running_through(proxy, **leases(node)):
        await renewed(node)
        proxy.fault(lambda request: "/leases" in request.path, answer(code) if code else drop, times=2)
        assert longest_gap(await renewals(node, 2 * LEASE_S)) < LEASE_S


async def test_a_lease_that_somebody_changes_or_deletes_is_renewed_all_the_same(node: SimulatedNode) -> None:
    async with node.running(**leases(node)):
        await renewed(node)
        await node.client.patch(LEASES, key(node), {"spec": {"holderIdentity": "a person"}})
        await eventually(lambda: holds(node, node.name))
        await node.client.delete(LEASES, key(node))
        await eventually(lambda: holds(node, node.name))
        await node.client.patch(LEASES, key(node), {"metadata": {"labels": {LABEL_AGENT_LEASE: None}}})

        async def labelled() -> bool:
            lease = await lease_of(node)
            return lease is not None and LABEL_AGENT_LEASE in lease.metadata.labels

        await eventually(labelled)


async def holds(node: SimulatedNode, holder: str) -> bool:
    lease = await lease_of(node)
    return lease is not None and lease.spec.holder_identity == holder


async def test_an_agent_that_cannot_read_its_gpus_is_silent_until_it_can(node: SimulatedNode) -> None:
    async with node.running(**leases(node)):
        await renewed(node)
        faults.break_driver(node.gpus)
        await asyncio.sleep(1.0)  # time for the reading that notices
        assert await renewals(node, LEASE_S) == []
        faults.reload_driver(node.gpus)
        await renewed(node)


async def test_an_agent_whose_driver_hangs_is_silent(node: SimulatedNode) -> None:
    async with node.running(**leases(node), nvml_limit_s=1.0):
        await renewed(node)
        faults.hang(node.gpus, "")
        await asyncio.sleep(2.0)
        assert await renewals(node, LEASE_S) == []
        faults.stop_failing(node.gpus)
        await renewed(node)


async def test_one_agent_follows_another_without_a_gap_in_the_renewals(node: SimulatedNode) -> None:
    async with kubelet_of(node) as kubelet:
        lease = leases(node, FOLLOWED_S)
        first = an_agent(node, **lease, lease_holder="first")
        await eventually(lambda: NVIDIA_DRIVER in kubelet.drivers())
        await eventually(lambda: holds(node, "first"))
        began, watching = time.monotonic(), asyncio.create_task(renewals(node, 60.0, until="second"))
        second = an_agent(node, **lease, lease_holder="second", takes_over=True)
        await asyncio.sleep(1.0)
        await ended(first)
        found = await watching
        await ended(second)
    assert [who for _, who in found][-1] == "second"
    assert longest_gap([(began, "first"), *found]) < FOLLOWED_S


async def test_a_node_that_is_cut_off_prepares_the_claims_that_it_has_and_no_other(
    node: SimulatedNode, proxy: FaultProxy
) -> None:
    has, new = await node.claim("gpu-0"), await node.claim("gpu-1")
    async with node.running_through(proxy, **leases(node)):
        first = (await node.prepare(has))[has.metadata.uid]
        async with proxy.unplugged():
            again = (await node.prepare(has))[has.metadata.uid]
            assert (again.error, list(again.devices)) == ("", list(first.devices))
            assert "could not be read from the API server" in (await node.prepare(new))[new.metadata.uid].error
            assert (await node.unprepare(has))[has.metadata.uid].error == ""
            assert "could not be read from the API server" in (await node.prepare(has))[has.metadata.uid].error


async def test_a_claim_that_the_api_server_says_is_gone_is_not_prepared_by_the_record(
    node: SimulatedNode, client: Client
) -> None:
    claim = await node.claim("gpu-0")
    async with node.running():
        await node.prepare(claim)
        await node.allocate(claim)
        assert (await node.prepare(claim))[claim.metadata.uid].error


@pytest.mark.parametrize("last", ["compute.internal", "n" * 60])
async def test_a_node_may_have_any_name_that_kubernetes_takes(client: Client, namespace: str, last: str) -> None:
    """A domain name of up to 253 characters: longer than a label's value, and than what is made of it may be."""
    name = f"ip-{uuid.uuid4().hex[:8]}.a-rather-long-subdomain-of-the-company.eu-central-1.{last}"
    if last.startswith("n"):
        name = f"{name}.{'m' * 60}.{'k' * 60}"
        name += "z" * (LONGEST_NAME - len(name))
    node = SimulatedNode(client, name=name)
    node.namespace = namespace
    await node.create()
    claim = await node.claim("gpu-0")
    try:
        async with node.running(**leases(node)):
            (item,) = await node.published(2)
            assert (item.spec.node_name, item.spec.pool.name) == (name, name)
            lease = await renewed(node)
            assert [(each.kind, each.name) for each in lease.metadata.owner_references] == [("Node", name)]

            async def reported() -> bool:
                with suppress(NotFound):
                    return len((await client.get(GPU_NODES, ObjectKey("", name))).status.gpus) == 2
                return False

            await eventually(reported)
            assert (await node.prepare(claim))[claim.metadata.uid].error == ""
            faults.xid(node.gpus, 1, 79)
            await eventually(lambda: node.events("GpuFault"))
    finally:
        await node.delete()
