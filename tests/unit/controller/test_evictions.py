"""Evicting several pods: one after the other, and no more after one is refused."""

from typing import Any, cast

import pytest

from draco.controller.evictions import DisruptionBudgets, PodEvictions
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Conflict, DisruptionRefused, Forbidden, NotFound, Unreachable
from draco.resources.api.core import PodDisruptionBudget
from draco.resources.api.meta import ObjectKey, ObjectMeta
from draco.resources.kinds import Kind
from tests.builders import a_pod
from tests.doubles.clock import ManualClock


class Server:
    """Accepts every eviction for which it has no other answer."""

    def __init__(self, **answers: ApiError) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.evictions = PodEvictions(cast("Client", self), clock=ManualClock())

    async def create_subresource(self, _: Kind[Any], key: ObjectKey, *__: Any, dry_run: bool) -> None:
        assert not dry_run
        self.asked.append(key.name)
        if key.name in self.answers:
            raise self.answers[key.name]

    async def evict(self, *names: str) -> tuple[list[str], list[tuple[str, str]]]:
        going, staying = await self.evictions.evict_in_turn([a_pod(name) for name in names])
        return [pod.metadata.name for pod in going], [(pod.metadata.name, answer.why) for pod, answer in staying]


async def test_after_a_refusal_nobody_else_is_asked() -> None:
    server = Server(b=DisruptionRefused(429, "TooManyRequests", "a budget is in the way."))
    assert await server.evict("a", "b", "c") == (["a"], [("b", "a budget is in the way")])
    assert server.asked == ["a", "b"]


async def test_one_that_is_gone_or_another_by_now_keeps_nobody_and_was_not_evicted() -> None:
    server = Server(a=NotFound(404, "NotFound", "gone"), b=Conflict(409, "Conflict", "another"))
    assert await server.evict("a", "b", "c") == (["c"], [])


class Budgets:
    """An API server with a budget in every namespace, or one that refuses."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: ApiError | None = None

    async def list(self, _: Kind[Any], *, namespace: str) -> list[PodDisruptionBudget]:
        self.asked.append(namespace)
        if self.error is not None:
            raise self.error
        return [PodDisruptionBudget(metadata=ObjectMeta(namespace=namespace, name="budget"))]


async def test_who_tells_of_budgets_learns_of_an_error_and_whom_they_only_guide_goes_on() -> None:
    server, clock = Budgets(), ManualClock()
    budgets = DisruptionBudgets(cast("Client", server), clock=clock, every_s=10.0)
    assert [str(each.metadata.key) for each in await budgets.current({"b", "a"})] == ["a/budget", "b/budget"]
    await budgets.current({"a", "b"})
    assert server.asked == ["a", "b"]
    await clock.advance(10.0)
    server.error = Unreachable("no answer")
    assert await budgets.read({"a"}) is False
    with pytest.raises(Unreachable):
        await budgets.current({"a"})
    server.error = Forbidden(403, "Forbidden", "may not")
    assert len(await budgets.current({"a"})) == 1
