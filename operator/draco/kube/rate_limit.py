"""A token bucket. Pure: the caller brings the time."""

import msgspec


class RateLimit(msgspec.Struct, frozen=True):
    """`burst` times immediately, then once per `refill_s` seconds."""

    burst: int
    refill_s: float

    def unspent(self, now_s: float) -> "Budget":
        """The full budget."""
        return Budget(self, float(self.burst), now_s)


class Budget(msgspec.Struct, frozen=True):
    """The budget left at a moment of the monotonic clock."""

    limit: RateLimit
    left: float
    at_s: float

    def left_at(self, now_s: float) -> float:
        """The budget now, including the fraction of the next refill."""
        return min(float(self.limit.burst), self.left + (now_s - self.at_s) / self.limit.refill_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until it may be done; 0 for now."""
        return max(0.0, (1 - self.left_at(now_s)) * self.limit.refill_s)

    def is_whole(self, now_s: float) -> bool:
        """Whether the budget is full."""
        return self.left_at(now_s) >= self.limit.burst

    def spent(self, now_s: float) -> "Budget":
        """The budget after one more use, allowed or not."""
        return Budget(self.limit, max(0.0, self.left_at(now_s) - 1), now_s)
