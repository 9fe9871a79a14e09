"""Claims like the last one get devices that were searched for while nothing waited, but never ones gone since."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from draco.controller.workers.messages import PlaceClaims, claims_of
from draco.kube.connect.client import Client
from draco.resources.kinds import CLAIMS, PODS
from tests.component.allocation.lab import ALLOCATING, Guarded, make_claim, until_allocated
from tests.component.allocation.published import publishing
from tests.component.allocation.test_changing_world import Lab
from tests.component.allocation.test_race import no_device_in_two_claims
from tests.component.controller.replicas import an_operator, until
from tests.component.simulator.test_nodes import make_pod

GPUS = 8
AT_MOST = 5
"""How many claims to create until one is foreseen: something may change right before a claim."""


async def make_pod_with_claim(client: Client, namespace: str, name: str) -> None:
    """A pod and a claim of the same name."""
    await make_pod(client, namespace, name, name)
    await make_claim(client, namespace, name)


@pytest.mark.parametrize("make", [make_claim, make_pod_with_claim])
async def test_a_claim_like_the_last_one_is_allocated_without_a_question(
    guarded: Guarded,
    handed_over: Client,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Client, str, str], Awaitable[object]],
) -> None:
    """The question in advance is about a nameless claim of a nameless pod."""
    lab, asked, taken = Lab(handed_over, namespace), list[str](), dict[str, str]()
    async with (
        no_device_in_two_claims(handed_over),
        publishing(handed_over, ["sim-1"], GPUS),
        an_operator(guarded, ALLOCATING) as (operator, _),
    ):
        ask_within = operator.reconcilers.workers.ask_within

        async def noted(question: Any, *rest: Any) -> Any:
            answer = await ask_within(question, *rest)
            if isinstance(question, PlaceClaims):
                asked.extend(each.metadata.name for each in claims_of(question))
            return answer

        monkeypatch.setattr(operator.reconcilers.workers, "ask_within", noted)

        async def looked_ahead() -> bool:
            return "" in asked

        async def allocated(name: str) -> None:
            await make(handed_over, namespace, name)
            claim = await until_allocated(handed_over, namespace, name)
            (taken[name],) = (each.device for each in claim.results)

        await allocated("first")
        assert "first" in asked
        for number in range(AT_MOST):
            await until(looked_ahead, what="a question about the next one")
            asked.clear()
            await allocated(name := f"like-it-{number}")
            if name not in asked:
                break
        else:
            pytest.fail(f"all of {AT_MOST} claims were asked about")
        await until(looked_ahead, what="a question about the next one")
        asked.clear()
        gone, *_ = sorted({f"gpu-{each}" for each in range(GPUS)} - {*taken.values()})
        await lab.drop(gone)
        await until(looked_ahead, what="another question, as what was known is void")
        await allocated("last")
        assert taken["last"] != gone
        for pod in await handed_over.list(PODS, namespace=namespace):
            await handed_over.delete(PODS, pod.metadata.key, grace_period_s=0)
        for name in taken:
            await handed_over.delete(CLAIMS, lab.key(name))
            await lab.until_gone(name)
