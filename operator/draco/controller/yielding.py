"""Long work on the event loop, with room for others in between.

Owns how long they may have to wait. What has changed in between is the caller's concern.
"""

import asyncio

from draco.kube.clock import Clock

BITE_S = 0.005
"""After so long others get their turn: probes, watches and the lease among them."""


class Bites:
    """Work that pauses between its parts once these have taken long enough together. The first bite begins at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before_s = 0.0
        self._spent_s = 0.0
        self._began_s = clock.monotonic()

    @property
    def work_s(self) -> float:
        """How long the work has taken so far.

        No bite counts for more than its length: what goes on for much longer was held up by the machine, and would mislead
        whoever plans by it.
        """
        return self._before_s + min(BITE_S, self._clock.monotonic() - self._began_s)

    @property
    def spent_s(self) -> float:
        """How long it has taken by the clock so far, without what others did in between."""
        return self._spent_s + self._clock.monotonic() - self._began_s

    async def pause(self) -> None:
        """Let others have the loop, if it is time."""
        took_s = self._clock.monotonic() - self._began_s
        if took_s < BITE_S:
            return
        self._before_s += BITE_S
        self._spent_s += took_s
        await asyncio.sleep(0)
        self._began_s = self._clock.monotonic()
