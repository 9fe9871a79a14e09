"""Tenants' objects come and go while an operator leads: it keeps nothing of deleted ones."""

import asyncio
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from draco.controller.app import Operator
from draco.controller.loop_watch import LoopWatch
from draco.kube.connect.client import Client
from draco.kube.connect.connection import Connection
from draco.kube.events.events import EventRecorder
from draco.kube.queue import WorkQueue
from draco.resources.api.meta import ObjectKey
from draco.resources.kinds import CLAIM_TEMPLATES, CLAIMS, DEVICE_RESERVATIONS, PODS
from tests.component.allocation.lab import ALLOCATING, CLASS, Guarded, make_claim, until_allocated
from tests.component.controller.replicas import an_operator, until
from tests.component.gangs.lab import make_member, make_template
from tests.component.simulator.test_nodes import make_pod, running
from tests.doubles.reached import grown, reached_from

GROUP = "kueue.x-k8s.io/pod-group-name"
SIZE = "kueue.x-k8s.io/pod-group-total-count"
NOTHING_FITS = {"cel": {"expression": f"device.driver == 'nobody' || '{'x' * 2_500}' == ''"}}
ROUNDS = 40
SLACK = 30
"""By how many objects a type may grow, however many rounds there are: caches fill up."""

_TIMED = (EventRecorder, WorkQueue, LoopWatch)
"""Types that keep objects for a limited time, bounded; other tests cover them."""
_ELSEWHERE = (Connection, asyncio.Task, asyncio.AbstractEventLoop)


async def one_round(client: Client, namespace: str, number: int) -> None:
    """Create a claim that gets a GPU, one that gets none, an incomplete group and a reservation, and delete them all."""
    await make_claim(client, namespace, f"served-{number}")
    await make_claim(client, namespace, f"never-{number}", selectors=[NOTHING_FITS])
    for name in ("served", "never"):
        await make_pod(client, namespace, f"{name}-{number}", f"{name}-{number}")
    await make_template(client, namespace, f"gang-{number}", gpus=1)
    labels, sizes = {GROUP: f"gang-{number}"}, {SIZE: "3"}
    for member in range(2):
        name = f"gang-{number}-{member}"
        await make_member(client, namespace, name, template=f"gang-{number}", labels=labels, annotations=sizes)
    asks = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]}}
    is_reserving = number % 4 == 0
    if is_reserving:
        meta = {"name": f"reserved-{number}", "namespace": namespace}
        await client.create(DEVICE_RESERVATIONS, {"metadata": meta, "spec": {"template": {"spec": asks}}})
    await until_allocated(client, namespace, f"served-{number}")
    if is_reserving:
        await client.delete(DEVICE_RESERVATIONS, ObjectKey(namespace, f"reserved-{number}"))
    for kind, names in (
        (PODS, [f"served-{number}", f"never-{number}", f"gang-{number}-0", f"gang-{number}-1"]),
        (CLAIMS, [f"served-{number}", f"never-{number}"]),
        (CLAIM_TEMPLATES, [f"gang-{number}"]),
    ):
        for name in names if number % 2 else reversed(names):
            await client.delete(kind, ObjectKey(namespace, name))


async def at_rest(operator: Operator, namespace: str) -> Any:
    """What the operator keeps once the namespace's objects are gone and it is idle."""
    made, view = operator.reconcilers, operator.view

    async def is_at_rest() -> bool:
        known = [*view.pods.store, *view.claims.store, *view.reservations.store]
        queues = [each.queue for each in made.all]
        busy = [queue for queue in queues if queue.depth or queue._running or queue._backoffs]
        return not (any(key.namespace == namespace for key in known) or busy or made.workers.waiting)

    await until(is_at_rest, what="rest")
    await asyncio.sleep(0)
    return reached_from(made, view, but=(*_TIMED, *_ELSEWHERE, float))


async def test_an_operator_holds_nothing_of_what_tenants_had(
    guarded: Guarded, handed_over: Client, namespace: str, folder: Path
) -> None:
    async with running(handed_over, folder), an_operator(guarded, ALLOCATING) as (operator, _):
        for number in range(4):
            await one_round(handed_over, namespace, number)
        before = await at_rest(operator, namespace)
        for number in range(4, 4 + ROUNDS):
            await one_round(handed_over, namespace, number)
        assert grown(before, await at_rest(operator, namespace), by=SLACK) == {}
        assert "draco_worker_waiting 0.0" in exported(operator)


def exported(operator: Operator) -> str:
    """Its metrics as scraped."""
    return generate_latest(operator.metrics.registry).decode()
