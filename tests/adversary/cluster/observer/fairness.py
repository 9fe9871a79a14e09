"""Which time counts against the product: seconds in which the observer was awake and everything needed was up.

Owns the record of deliberate outages, of the observer's own lag, and of how long programs waited for a processor. Knows no law.
On a busy machine deadlines are extended by the time that the observer itself lost.
"""

from collections import deque
from pathlib import Path

LONGEST_STEP_S = 0.5
"""The most that counts of a gap between two looks: in a longer one the observer did not run either."""


class Fairness:
    """The parts that are down, and until when restarted ones may recover. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._down: set[str] = set()
        self._back_at: dict[str, float] = {}
        self._outages: deque[tuple[str, float, float]] = deque(maxlen=1000)
        self._since: dict[str, float] = {}
        self._last: float | None = None

    def down(self, part: str, now: float) -> None:
        """A part was taken down deliberately."""
        self._down.add(part)
        self._since.setdefault(part, now)

    def up(self, part: str, now: float, *, grace_s: float) -> None:
        """A part was started again and has `grace_s` to recover."""
        if part in self._down:
            self._down.discard(part)
            self._outages.append((part, self._since.pop(part, now), now + grace_s))
        self._back_at[part] = max(self._back_at.get(part, 0.0), now + grace_s)

    def is_up(self, part: str, now: float) -> bool:
        """Whether the part runs and its recovery time is over."""
        return part not in self._down and self._back_at.get(part, 0.0) <= now

    def was_down(self, part: str, since: float, until: float) -> float:
        """Seconds of an interval in which the part was down or recovering."""
        spans = [(start, end) for name, start, end in self._outages if name == part]
        if part in self._since:
            spans.append((self._since[part], until))
        return sum(max(0.0, min(end, until) - max(start, since)) for start, end in spans)

    def step(self, now: float) -> float:
        """Seconds since the last look that count, without the observer's own lag."""
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        return min(passed, LONGEST_STEP_S)


class Pace:
    """How much this machine delays a program that makes one small write per beat: the gaps between a twin's lease renewals.

    The measured stall is up to one beat too short, so choose a beat much shorter than the deadlines it is compared with.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._gaps: deque[tuple[float, float]] = deque(maxlen=1000)  # end and length

    def renewed(self, now: float, gap_s: float) -> None:
        """The twin's write was answered `gap_s` after the previous one."""
        self._gaps.append((now, gap_s))

    def excess_s(self, since: float, until: float) -> float:
        """The largest delay among gaps that overlap this interval."""
        return max([0.0, *self._excesses(since, until)])

    def lost_s(self, since: float, until: float) -> float:
        """The total delay of gaps that overlap this interval: the machine may stall more than once."""
        return sum(max(0.0, each) for each in self._excesses(since, until))

    def _excesses(self, since: float, until: float) -> list[float]:
        """Delays of gaps, the current one included: after a stall, other programs may be heard of before the twin."""
        gaps = list(self._gaps)
        if gaps and gaps[-1][0] < until:
            gaps.append((until, until - gaps[-1][0]))
        return [gap - self._every_s for end, gap in gaps if end >= since and end - gap <= until]


class Starvation:
    """How long programs were runnable without a processor, as the kernel counts it; zero where it does not.

    One thread samples, and another asks.

    `Pace` does not show this: the scheduler serves an almost idle twin at once while a busy program waits for its share.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[tuple[int, str], int] = {}
        self._waits: deque[tuple[float, int, float]] = deque(maxlen=4000)  # end, program, length

    def sample(self, pid: int, now: float) -> None:
        """Read how long a program's threads have waited since the last time. The longest counts, as it holds up the others."""
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
        """How long a program is known to have waited since then."""
        return sum(waited_s for until, of, waited_s in self._waits.copy() if of == pid and until >= since)
