"""Whole collections of a live cluster, for commands that read it once.

Owns the patience with a server that has just started, and the sentence about what cannot be read. Kept apart from `live` so that
`draco status` does not load what allocation needs.
"""

from random import Random
from typing import TypeVar

from draco.kube.client import Client
from draco.kube.clock import SystemClock
from draco.kube.retry import retry
from draco.resources.kinds import Kind

T = TypeVar("T")


async def listed(client: Client, kind: Kind[T], unread: list[str], params: dict[str, str] | None = None) -> list[T]:
    """Every object of the kind that can be read; a sentence about each other one is added to `unread`. Raises KubeError."""
    # A server that has just started, or that has just learnt a kind, asks to come back in a moment.
    jitter = Random()  # noqa: S311 - spreads retries, guards nothing
    page = await retry(lambda: client.list_page(kind, params=params), clock=SystemClock(), random=jitter, attempts=4)
    unread += [
        f"{kind.kind} {one.key} is left out, because it cannot be read: {one.error}." for one in page.undecodable
    ]
    return page.items
