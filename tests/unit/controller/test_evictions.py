"""Evicting several pods: one after the other, and no more after one is refused."""

from typing import Any, cast

from draco.controller.evictions import PodEvictions
from draco.kube.connect.client import Client
from draco.kube.errors import ApiError, Conflict, DisruptionRefused, NotFound
from draco.resources.api.meta import ObjectKey
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
