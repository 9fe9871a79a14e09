"""A small kind, quick settings and waiting, for the tests of this folder."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from draco.kube.watch.informer import Informer, InformerSettings
from draco.resources.api.base import ApiStruct
from draco.resources.api.meta import ObjectMeta
from draco.resources.kinds import Kind

QUICK = InformerSettings(
    idle_timeout_s=2.0, watch_timeout_s=60.0, list_timeout_s=5.0, first_pause_s=0.02, longest_pause_s=0.3, page_size=7
)


class ConfigMap(ApiStruct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}


CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap", True, ConfigMap)
"""Stands for any kind: it is small, and no controller touches it."""


def a_config_map(namespace: str, name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data=data)


@asynccontextmanager
async def following(informer: Informer[Any]) -> AsyncIterator[None]:
    """Run the informer within the block; it has synced when the block begins."""
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), 60)
        yield
        assert not task.done(), "the informer ended"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Callable[[], bool], what: str, *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.01)
