"""How fast a new selector is evaluated for all devices: `python -m benchmarks.selector_scan`.

From 100 to 10,000 nodes with ten GPUs of four models each; the time is that of the scan, after the selector is compiled and the
columns that it reads exist. The peer is cel-python's interpreter, which evaluates the same expression device by device on a
sample of devices, each converted beforehand, in the same run.
"""

import statistics
import sys
import time
from typing import Any, NamedTuple

import celpy
import celpy.adapter

from benchmarks.gpu_fleet import DRIVER, GPU_CLASS, MODELS, SIZES, a_gpu, a_slice, put
from benchmarks.table import Row, tell
from draco.allocation.fleet.fleet import Fleet

TARGET_S = 3e-3
TARGET_RATIO = 200.0
GPUS = 10
ROUNDS = 15
PEER_DEVICES = 400


class Measured(NamedTuple):
    """Seconds for all devices, seconds to compile, and seconds of the peer for each device."""

    devices: int
    scan_s: float
    compile_s: float
    peer_s: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer, per device."""
        return self.peer_s / (self.scan_s / self.devices)

    @property
    def met(self) -> bool:
        """Whether both targets are met."""
        return self.scan_s <= TARGET_S and self.ratio >= TARGET_RATIO

    def __str__(self) -> str:
        return (
            f"{self.devices:>8}{self.scan_s * 1e3:>9.2f} ms{self.compile_s * 1e3:>9.2f} ms"
            f"{self.scan_s / self.devices * 1e9:>12.1f} ns{self.peer_s * 1e6:>12.0f} us{self.ratio:>10.0f}x"
        )


def main() -> int:
    """Measure, and say whether the targets are met."""
    print(f"{'devices':>8}{'scan':>12}{'compile':>12}{'per device':>15}{'cel-python':>15}{'ratio':>11}")
    peer_s = cel_python_s()
    met = True
    for nodes in SIZES:
        measured = measure(nodes, peer_s)
        print(measured, flush=True)
        if nodes == SIZES[-1]:
            met = measured.met
            tell(row(measured))
    return 0 if met else 1


def row(measured: Measured) -> Row:
    """The figure that has a target."""
    return Row(
        f"new selector over {measured.devices} devices of {len(MODELS)} models",
        f"{measured.scan_s * 1e3:.2f} ms",
        f"{measured.peer_s * 1e6:.0f} us a device in cel-python's interpreter ({measured.ratio:.0f} times)",
        f"<= {TARGET_S * 1e3:g} ms, >= {TARGET_RATIO:g} times faster",
        measured.met,
    )


def expression(least: int) -> str:
    """A selector of two attributes and the driver; each number makes a new one."""
    of_gpu = f"device.attributes['{DRIVER}']"
    return f"device.driver == '{DRIVER}' && {of_gpu}.productName == '{MODELS[1][0]}' && {of_gpu}.index >= {least}"


def measure(nodes: int, peer_s: float) -> Measured:
    """Scans over a cluster of that size."""
    fleet = Fleet()
    put(fleet, GPU_CLASS)
    for node in range(nodes):
        put(fleet, a_slice(node, [a_gpu(node, index) for index in range(GPUS)]))
    selectors = fleet.inventory.selectors
    selectors.scan(expression(-1))
    scans, compiles = [], []
    for turn in range(ROUNDS):
        began = time.perf_counter()
        selectors.compile(expression(turn % GPUS + GPUS * turn))
        compiled = time.perf_counter()
        selectors.scan(expression(turn % GPUS + GPUS * turn))
        scans.append(time.perf_counter() - compiled)
        compiles.append(compiled - began)
    return Measured(nodes * GPUS, statistics.median(scans), statistics.median(compiles), peer_s)


def cel_python_s() -> float:
    """Seconds that cel-python's interpreter takes for a device."""
    environment = celpy.Environment(runner_class=celpy.InterpretedRunner)
    program = environment.program(environment.compile(expression(4)))
    ready = [{"device": as_celpy_sees_it(a_gpu(number // GPUS, number % GPUS))} for number in range(PEER_DEVICES)]
    began = time.perf_counter()
    selected = sum(bool(program.evaluate(each)) for each in ready)
    took = time.perf_counter() - began
    if not 0 < selected < PEER_DEVICES:
        raise RuntimeError(f"cel-python selects {selected} of {PEER_DEVICES} devices")
    return took / PEER_DEVICES


def as_celpy_sees_it(device: dict[str, Any]) -> Any:
    """A device as a value of cel-python, as far as the selector reads it."""
    attributes = device["attributes"]
    own = {"productName": attributes["productName"]["string"], "index": attributes["index"]["int"]}
    return celpy.adapter.json_to_cel({"driver": DRIVER, "attributes": {DRIVER: own}})


if __name__ == "__main__":
    sys.exit(main())
