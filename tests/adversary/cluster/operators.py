"""The operator as the adversary runs it: `python -m tests.adversary.cluster.operators operator`, with the product's options.

Owns the delays that are shortened because a run is short: a group may lack a pod for a few seconds instead of five minutes, and
each minute for which a MigPolicy lets a PodGroup without pods keep devices lasts a few seconds.
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
    """How long this delay lasts here."""
    return lasting(text) * MINUTE_S / 60.0


if __name__ == "__main__":
    losses.AFTER_S = SHORT_FOR_S
    leaks.SETTLE_S = SETTLE_S
    leak_rule.lasting = shortened  # type: ignore[attr-defined] # defined in another module, where others read it, too
    main()
