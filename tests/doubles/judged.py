"""GPUs as the agent shows them after one reading, judged by an empty fault ledger."""

from collections.abc import Iterable

from draco.agent.hardware.faults import health, judged
from draco.agent.hardware.gpus import Gpu
from draco.health.ledger import DriverLoad, FaultLedger, looked
from tests.builders import MOMENT


def at_first_sight(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Each GPU with the faults that the reading shows."""
    seen = list(gpus)
    ledger = looked(FaultLedger(), [gpu.reading for gpu in seen], now=MOMENT, load=DriverLoad("boot"))
    return [judged(gpu, ledger) for gpu in seen]


def told(gpu: Gpu) -> str:
    """What is said of its health."""
    _, fault = health(gpu)
    return "" if fault is None else fault.status.message
