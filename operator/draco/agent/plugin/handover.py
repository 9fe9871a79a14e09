"""How a leaving agent and its successor keep kubelet served during an upgrade.

An upgrade starts the next agent before it ends the serving one (the DaemonSet's maxSurge). The next one stands by: it is Ready,
but has neither the node's record nor a socket. When the serving agent is told to end, it says so, and the next one registers with
kubelet and holds its calls until the record is free. So kubelet always has a plugin, does not delete the slices, and no call
fails. If the serving agent dies without a word, the next one registers as soon as the record is free.

Owns the two files of this protocol, beside the record: `agent.next`, which the next agent locks and in which it writes that it
has registered, and `agent.leaving`. `registration` decides what is served, and when.
"""

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import structlog

from draco.agent.errors import AnotherPlugin
from draco.agent.files import is_locked
from draco.kube.clock import Clock

log = structlog.get_logger()

POLL_S: Final = 0.05
WAIT_S: Final = 5.0
"""How long a leaving agent waits for the next one to register. A busy kubelet may take longer."""
CALLS_S: Final = 10.0
"""How long it waits for its own calls; kubelet ends it after 30 s."""
QUIET_S: Final = 0.2
"""For calls that kubelet was about to make when the next agent registered."""
_NEXT: Final = "agent.next"
_LEAVING: Final = "agent.leaving"
_REGISTERED: Final = b"registered"
_ATTEMPTS: Final = 3
_INSTANT_S: Final = 0.005


class NextAgent:
    """The place of the one agent that stands by, held within the context."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / _NEXT
        self._leaving = folder / _LEAVING
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Raise AnotherPlugin if another agent stands by."""
        descriptor = os.open(self._place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _taken(descriptor):
            os.close(descriptor)
            raise AnotherPlugin(
                f"Two Draco agents already run on this node: one serves, one stands by in {self._place}. End one of them.",
                ours=True,
            )
        os.ftruncate(descriptor, 0)
        self._leaving.unlink(missing_ok=True)  # left by an earlier handover that was killed
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.unlink(missing_ok=True)
        os.close(self._descriptor)

    @property
    def called(self) -> bool:
        """Whether the serving agent has said that it leaves."""
        return self._leaving.exists()

    def has_registered(self) -> None:
        """Tell the leaving agent that kubelet calls us now. On a full disk it gets no answer, and leaves after its wait."""
        with suppress(OSError):
            os.pwrite(self._descriptor, _REGISTERED, 0)


async def hand_over(folder: Path, clock: Clock, *, calls: Callable[[], int]) -> None:
    """Tell the next agent, if one stands by, to register; return once it has, or after a while.

    Our own calls are answered by then. `calls` counts open ones: kubelet drops them when a socket is removed.
    """
    place, leaving = folder / _NEXT, folder / _LEAVING
    if not stands_by(folder):
        return
    log.info("plugin.handing_over", folder=str(folder))
    deadline = clock.monotonic() + WAIT_S
    while clock.monotonic() < deadline and stands_by(folder):
        with suppress(OSError):  # a full disk only costs a gap of a second
            leaving.touch()  # repeated, because an agent that begins to stand by removes it
            if place.read_bytes() == _REGISTERED:
                break
        await clock.sleep(POLL_S)
    quiet_since = clock.monotonic()
    deadline = quiet_since + CALLS_S
    while clock.monotonic() < min(deadline, quiet_since + QUIET_S):
        await clock.sleep(POLL_S)
        if calls():
            quiet_since = clock.monotonic()


def _taken(descriptor: int) -> bool:
    """Whether we locked the place. `stands_by` holds it for an instant too, so retry."""
    for _ in range(_ATTEMPTS):
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_INSTANT_S)
    return False


def stands_by(folder: Path) -> bool:
    """Whether an agent stands by."""
    return is_locked(folder / _NEXT)
