"""The operator as the adversary runs it: `python -m tests.adversary.cluster.operators operator`, with the product's options.

Owns how much less patient it is, as a run is short: a group may be short of a pod for a few seconds instead of five minutes, and
the minutes for which a PodGroup without a pod may keep devices, as a MigPolicy says, last a few seconds each.
"""

from datetime import timedelta

from draco.allocation.ownership import leaks as leak_rule
from draco.cli import main
from draco.controller.allocation.preempting import losses
from draco.controller.allocation.reclaiming import leaks
from draco.resources.windows import lasting
from tests.adversary.cluster.observer.evicted import SHORT_FOR_S

MINUTE_S = 8.0
SETTLE_S = 4.0


def shortened(text: str) -> timedelta:
    """How long that is meant to last here."""
    return lasting(text) * MINUTE_S / 60.0


if __name__ == "__main__":
    losses.AFTER_S = SHORT_FOR_S
    leaks.SETTLE_S = SETTLE_S
    leak_rule.lasting = shortened  # type: ignore[attr-defined] # it is from another module, where others read it, too
    main()
