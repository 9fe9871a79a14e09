"""Kopf's handlers, for our own kinds only.

Owns Kopf's registry and settings. The handlers are wake-ups: they hand a key over and do nothing else, so Kopf writes nothing,
neither annotations nor finalizers nor Events. Where Kopf runs is `kopf_thread`'s business, which alone imports this module.
"""

from collections.abc import Callable, Mapping
from typing import Any

import kopf

from draco.kube.connection import Connection
from draco.resources.kinds import Kind

Wakes = Mapping[Kind[Any], Callable[[str], None]]
"""Who is to hear of each kind's objects that were seen or changed, by UID."""


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf's settings: it posts no Events, does not join peers, and gives up on a silent watch before a proxy would."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # our kinds are served before Kopf starts, and none is added while it runs
    settings.process.ultimate_exiting_timeout = None  # the process is not Kopf's to kill
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.networking.request_timeout = 30
    return settings


def kopf_registry(wakes: Wakes, connection: Connection) -> kopf.OperatorRegistry:
    """The handlers: one for each kind that somebody is to hear of."""
    registry = kopf.OperatorRegistry()
    for kind, wake in wakes.items():
        _watch(registry, kind, wake)

    @kopf.on.login(id="draco", registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=connection.lend_session())

    return registry


def _watch(registry: kopf.OperatorRegistry, kind: Kind[Any], wake: Callable[[str], None]) -> None:
    # `on.event` only: every other kind of handler keeps its state in annotations of the object.
    @kopf.on.event(kind.group, kind.version, kind.plural, id=kind.kind.lower(), registry=registry)
    async def seen(uid: str | None, **_: Any) -> None:
        if uid:
            wake(uid)
