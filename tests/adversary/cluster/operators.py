"""The operator as the adversary runs it: `python -m tests.adversary.cluster.operators operator`, with the product's options.

Owns one difference: the five minutes for which a group may be short of a pod are a few seconds, as a run is short, too.
"""

from draco.cli import main
from draco.controller.allocation import losses
from tests.adversary.cluster.observer.evicted import SHORT_FOR_S

if __name__ == "__main__":
    losses.AFTER_S = SHORT_FOR_S
    main()
