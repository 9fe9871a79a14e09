"""Devices that become free one after the other, as those of a job do that ends.

Owns until when that goes on. As long as it does, whoever asks for little would find a place at each moment before the group that
asks for much and has waited longer. Decides nothing, writes nothing.
"""

from typing import Final

from draco.controller.view import ClusterView
from draco.kube.clock import Clock
from draco.kube.watch.store import Change
from draco.resources.api.claims import ResourceClaim

_STILL_S: Final = 0.1
"""So long after the last one no more are expected: kube-controller-manager's limit lets it write twenty times a second."""
_LONGEST_S: Final = 2.0
"""Where devices become free all the time, what there is by then is given out, again and again."""


class Releases:
    """Follows the claims of the view."""

    def __init__(self, view: ClusterView, *, clock: Clock) -> None:
        self._clock = clock
        self._since_s = self._last_s = float("-inf")
        view.claims.subscribe(self._look)

    def over_s(self, asked_s: float) -> float:
        """By the monotonic clock: when to ask again who asked at that time, since they are over or go on for long."""
        return min(self._last_s + _STILL_S, max(self._since_s, asked_s) + _LONGEST_S)

    def _look(self, change: Change[ResourceClaim]) -> None:
        before, after = change.before, change.after
        had = before is not None and before.status.allocation is not None
        has = after is not None and after.status.allocation is not None
        if not had or has:
            return
        now_s = self._clock.monotonic()
        if now_s > self._last_s + _STILL_S:
            self._since_s = now_s
        self._last_s = now_s
