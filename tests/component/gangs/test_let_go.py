"""The devices that a gang waits for become free: a pod and its claim are deleted one right after the other.

kube-controller-manager deallocates the claim, Draco allocates it once more because a named claim still exists, and before that
write arrives the claim is gone. `DRACO_LET_GO_ROUNDS` sets how often; by default a few times.
"""

import contextlib
import os
from pathlib import Path

from draco.kube.connect.client import Client
from draco.kube.errors import NotFound
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIMS, PODS
from tests.component.allocation.lab import ALLOCATING, Guarded, events_of, make_claim
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import make_member, make_template
from tests.component.gangs.test_groups_by_label import KUEUE, sized
from tests.component.simulator.test_nodes import GPUS, make_pod, running, until_running
from tests.side_by_side import REPORTS

ROUNDS = int(os.environ.get("DRACO_LET_GO_ROUNDS", "3"))
EARLY = "early"


class Lab:
    """A node whose GPUs are all Draco's. A gang that needs all of them waits for one that a pod holds."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.rounds = 0

    @property
    def gang(self) -> list[str]:
        """Names of the gang's pods in this round."""
        return [f"member-{self.rounds}-{number}" for number in range(GPUS)]

    async def begin(self) -> None:
        self.rounds += 1
        await make_claim(self.client, self.namespace, EARLY)
        await make_pod(self.client, self.namespace, EARLY, EARLY)
        await until_running(self.client, self.namespace, EARLY)
        for name in self.gang:
            await make_member(self.client, self.namespace, name, template="one", labels=KUEUE, annotations=sized(GPUS))

        async def waits() -> bool:
            told = [await events_of(self.client, self.namespace, name, "GroupWaiting") for name in self.gang]
            return any(told)

        await until(waits, what="that the gang is told that it waits")

    async def delete_claim(self) -> None:
        with contextlib.suppress(NotFound):
            await self.client.delete(CLAIMS, ObjectKey(self.namespace, EARLY))

    async def let_go(self) -> None:
        await self.client.delete(PODS, ObjectKey(self.namespace, EARLY), grace_period_s=0)

    async def end(self) -> None:
        """Wait until the gang runs; delete it with its claims."""
        await until_running(self.client, self.namespace, *self.gang)
        for name in self.gang:
            await self.client.delete(PODS, ObjectKey(self.namespace, name), grace_period_s=0)

        async def all_gone() -> bool:
            return not await self.client.list(CLAIMS, namespace=self.namespace)

        await until(all_gone, what="the end of the gang's claims")


async def test_a_gang_starts_though_what_it_waits_for_was_about_to_be_written_for_another_that_is_gone(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    """The claim is deleted at the worst moment: while its second allocation is being written."""
    lab = Lab(handed_over, namespace)
    await make_template(handed_over, namespace, "one", gpus=1)
    is_let_go = False

    async def before(method: str, path: str) -> None:
        if is_let_go and method == "PATCH" and f"/{namespace}/resourceclaims/{EARLY}" in path:
            await lab.delete_claim()

    async with running(handed_over, folder), an_operator(guarded, ALLOCATING, before_requests=before):
        await lab.begin()
        is_let_go = True
        await lab.let_go()
        await lab.end()


async def test_a_gang_starts_each_time_when_a_pod_and_its_claim_are_deleted_at_once(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    lab = Lab(handed_over, namespace)
    await make_template(handed_over, namespace, "one", gpus=1)
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING):
        for _ in range(ROUNDS):
            await lab.begin()
            await lab.let_go()
            await lab.delete_claim()
            await lab.end()
    REPORTS.append(f"gangs: {ROUNDS} times one started whose last device was let go with its claim")
