"""How often something may be done: at once, and then from time to time. Pure: the caller brings the time."""

import msgspec


class RateLimit(msgspec.Struct, frozen=True):
    """`burst` times at once, then once in `refill_s` seconds."""

    burst: int
    refill_s: float

    def unspent(self, now_s: float) -> "Budget":
        """The whole budget."""
        return Budget(self, float(self.burst), now_s)


class Budget(msgspec.Struct, frozen=True):
    """How much was left at a moment of the monotonic clock."""

    limit: RateLimit
    left: float
    at_s: float

    def left_at(self, now_s: float) -> float:
        """How many times it may be done now, and the begun part of one more."""
        return min(float(self.limit.burst), self.left + (now_s - self.at_s) / self.limit.refill_s)

    def wait_s(self, now_s: float) -> float:
        """In how many seconds it may be done; 0 for now."""
        return max(0.0, (1 - self.left_at(now_s)) * self.limit.refill_s)

    def is_whole(self, now_s: float) -> bool:
        """Whether nothing of it is spent any more."""
        return self.left_at(now_s) >= self.limit.burst

    def spent(self, now_s: float) -> "Budget":
        """The budget after it was done once more, allowed or not."""
        return Budget(self.limit, max(0.0, self.left_at(now_s) - 1), now_s)
