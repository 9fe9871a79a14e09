"""Gangs under a DeviceLimit while operators die one after another: at no version of any claim is more held than permitted."""

import asyncio

from draco.kube.connect.client import Client
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS
from tests.component.allocation.lab import ALLOCATING, Guarded
from tests.component.allocation.published import publishing
from tests.component.allocation.test_limits import a_limit, allocated, following
from tests.component.allocation.test_race import no_device_in_two_claims
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import make_member, make_template
from tests.component.gangs.test_groups_by_label import sized
from tests.side_by_side import REPORTS

LIMIT = 5
GANGS = ("a", "b", "c", "d")


async def test_gangs_never_hold_more_than_a_limit_permits_though_operators_die_after_each_write(
    guarded: Guarded, all_dracos: Client, namespace: str
) -> None:
    """Two of four gangs of two fit into a limit of five."""
    async with (
        no_device_in_two_claims(all_dracos),
        publishing(all_dracos, ["sim-1"], 8),
        a_limit(all_dracos, namespace, {"devices": LIMIT}),
        following(all_dracos) as held,
    ):
        await make_template(all_dracos, namespace, "one", gpus=1)

        async def make(gang: str) -> None:
            labels = {"kueue.x-k8s.io/pod-group-name": gang}
            for name in (f"{gang}-0", f"{gang}-1"):
                await make_member(
                    all_dracos,
                    namespace,
                    name,
                    template="one",
                    labels=labels,
                    annotations=sized(2),
                    schedulerName="nobody",
                )

        async def served() -> set[str] | None:
            """The complete gangs, once there are two and no other has devices."""
            found = [each.metadata.name[0] for each in await allocated(all_dracos, namespace)]
            whole = {gang for gang in GANGS if found.count(gang) == 2}
            return whole if len(whole) == 2 and len(found) == 4 else None

        lives = 0
        written = f"/namespaces/{namespace}/resourceclaims/"
        await make("a")
        for gang in ("b", "c"):  # one arrives while another is being allocated
            async with an_operator(guarded, ALLOCATING, dies_after_writes=1, dies_of_writes_to=written) as (_, task):
                await asyncio.wait([task])
            lives += 1
            await make(gang)
        await make("d")
        first = asyncio.create_task(until(served, within_s=120, what="two whole gangs"))
        while not first.done():
            async with an_operator(guarded, ALLOCATING, dies_after_writes=1, dies_of_writes_to=written) as (_, task):
                await asyncio.wait([task, first], return_when=asyncio.FIRST_COMPLETED)
            lives += 1
        whole = await first
        for gang in whole:
            for number in range(2):
                await all_dracos.delete(PODS, ObjectKey(namespace, f"{gang}-{number}"), grace_period_s=0)

        async def others() -> bool:
            now = await served()
            return now is not None and not now & whole

        async with an_operator(guarded, ALLOCATING):
            await until(others, what="the other two gangs")
        assert lives >= 3
        assert held.most[namespace] <= LIMIT
        REPORTS.append(
            f"limits: {lives} operators in turn allocated gangs, {held.most[namespace]} of {LIMIT} devices were held at most"
        )
        for pod in await all_dracos.list(PODS, namespace=namespace):
            await all_dracos.delete(PODS, pod.metadata.key, grace_period_s=0)

        async def gone() -> bool:
            return not await all_dracos.list(CLAIMS, namespace=namespace)

        await until(gone, what="the end of all claims")
