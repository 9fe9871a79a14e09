"""Which time counts against the product: seconds in which the observer was awake and everything needed was up.

Owns the bookkeeping of outages that were made on purpose, of the observer's own lag, and of how long a program waited for a
processor. Knows no law. A deadline that a crowded machine misses is nobody's fault: what the observer could not do
in time itself, it asks of nobody.
"""

from collections import deque
from pathlib import Path

LONGEST_STEP_S = 0.5
"""Of a longer gap between two looks only so much counts: the observer did not run either."""


class Fairness:
    """What is down, by name, and until when it is given time to recover. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._down: set[str] = set()
        self._back_at: dict[str, float] = {}
        self._outages: deque[tuple[str, float, float]] = deque(maxlen=1000)
        self._since: dict[str, float] = {}
        self._last: float | None = None

    def down(self, part: str, now: float) -> None:
        """A part was taken down on purpose."""
        self._down.add(part)
        self._since.setdefault(part, now)

    def up(self, part: str, now: float, *, grace_s: float) -> None:
        """It was started again, and has so long to recover."""
        if part in self._down:
            self._down.discard(part)
            self._outages.append((part, self._since.pop(part, now), now + grace_s))
        self._back_at[part] = max(self._back_at.get(part, 0.0), now + grace_s)

    def is_up(self, part: str, now: float) -> bool:
        """Whether it runs and has had its time."""
        return part not in self._down and self._back_at.get(part, 0.0) <= now

    def was_down(self, part: str, since: float, until: float) -> float:
        """Seconds of an interval in which the part was down or recovering."""
        spans = [(start, end) for name, start, end in self._outages if name == part]
        if part in self._since:
            spans.append((self._since[part], until))
        return sum(max(0.0, min(end, until) - max(start, since)) for start, end in spans)

    def step(self, now: float) -> float:
        """Seconds since the last look that count, as far as the observer's own lag is concerned."""
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        return min(passed, LONGEST_STEP_S)


class Pace:
    """What this machine grants a program that does one small write at every beat: the gaps between a twin's renewals.

    A stall is seen at its length less one beat at most, so the beat is to be short beside what it is compared with.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._gaps: deque[tuple[float, float]] = deque(maxlen=1000)  # when it ended, how long it was

    def renewed(self, now: float, gap_s: float) -> None:
        """The twin's write was answered, so long after the one before."""
        self._gaps.append((now, gap_s))

    def excess_s(self, since: float, until: float) -> float:
        """The most by which a gap that touches this interval was longer than it should be."""
        return max([0.0, *self._excesses(since, until)])

    def lost_s(self, since: float, until: float) -> float:
        """All by which the gaps that touch this interval were longer than they should be: it may stall more than once."""
        return sum(max(0.0, each) for each in self._excesses(since, until))

    def _excesses(self, since: float, until: float) -> list[float]:
        """Also of the gap that still lasts: after a stall, others may be heard of before the twin is."""
        gaps = list(self._gaps)
        if gaps and gaps[-1][0] < until:
            gaps.append((until, until - gaps[-1][0]))
        return [gap - self._every_s for end, gap in gaps if end >= since and end - gap <= until]


class Starvation:
    """How long programs were ready to run and got no processor, as the kernel counts it; nothing where it does not say.

    One thread samples, and another asks.

    A twin that does next to nothing is served at once where a program that has work to do waits for its share.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[tuple[int, str], int] = {}
        self._waits: deque[tuple[float, int, float]] = deque(maxlen=4000)  # until when, which program, how long

    def sample(self, pid: int, now: float) -> None:
        """Read what a program's threads have waited since the last time; the one that waited longest holds up the others."""
        longest = 0
        for thread in self._proc.glob(f"{pid}/task/*/schedstat"):
            try:
                waited_ns = int(thread.read_text().split()[1])
            except (OSError, ValueError, IndexError):
                continue
            key = pid, thread.parent.name
            longest = max(longest, waited_ns - self._known.get(key, waited_ns))
            self._known[key] = waited_ns
        if longest:
            self._waits.append((now, pid, longest / 1e9))

    def waited_s(self, pid: int, since: float) -> float:
        """All that a program is known to have waited since then."""
        return sum(waited_s for until, of, waited_s in self._waits.copy() if of == pid and until >= since)
