"""GPUs as the agent shows them after one reading, by a ledger that knew nothing before."""

from collections.abc import Iterable

from draco.agent.hardware.faults import judged
from draco.agent.hardware.gpus import Gpu
from draco.health.ledger import DriverLoad, Ledger, looked
from tests.builders import MOMENT


def at_first_sight(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Each with the faults of which the reading has shown signs."""
    seen = list(gpus)
    ledger = looked(Ledger(), [gpu.reading for gpu in seen], now=MOMENT, load=DriverLoad("boot"))
    return [judged(gpu, ledger) for gpu in seen]
