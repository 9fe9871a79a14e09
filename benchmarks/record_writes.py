"""How often preparing a claim waits for the disk: `python -m benchmarks.record_writes`.

Prepares and unprepares claims of whole GPUs, in the folder in which it runs, and counts the calls that wait: fsync and fdatasync.
The peer is a record that writes a new file at every change, as drivers do and this agent did: for the intent, the spec and the
prepared claim a temporary file, fsync, rename, fsync of the folder. It writes the same bytes, without preallocated space, in the
same run, in turn.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from benchmarks.table import Row, tell
from draco.agent.claims.cdi import CdiFolder
from draco.agent.files import Files
from draco.agent.hardware.capabilities import Capabilities
from draco.agent.record.checkpoint import Checkpoint
from draco.resources.names import NVIDIA_DRIVER, ClaimUid
from tests.builders import a_claim, a_gpu
from tests.doubles.undivided import a_preparer

TARGET = 3
HELD = 7
"""Claims that are prepared already: with the measured one, a node of eight GPUs is full."""


@contextmanager
def counted() -> Iterator[list[str]]:
    """Counts the calls that wait for the disk."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def watching(name: str) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            calls.append(name)
            real[name](descriptor)

        return call

    for name in real:
        setattr(os, name, watching(name))
    try:
        yield calls
    finally:
        for name, call in real.items():
            setattr(os, name, call)


class Side:
    """One way to keep the record: the time of each preparation, and how often it waited."""

    def __init__(self) -> None:
        self.waits: list[int] = []
        self.took_s: list[float] = []

    def measure(self, work: Callable[[], object]) -> None:
        """Take one sample."""
        with counted() as calls:
            began = time.perf_counter()
            work()
            self.took_s.append(time.perf_counter() - began)
        self.waits.append(len(calls))

    @property
    def median_ms(self) -> float:
        """The median time of a sample, in milliseconds."""
        return statistics.median(self.took_s) * 1000

    def __str__(self) -> str:
        waits = f"{statistics.median(self.waits):g} waits, {max(self.waits)} at most"
        return f"{waits}, {self.median_ms:.2f} ms (median)"


def measure(folder: Path, rounds: int) -> tuple[Side, Side]:
    """Draco's agent and the peer, in turn."""
    files, gpus = Files(), {f"gpu-{minor}": a_gpu(minor) for minor in range(HELD + 1)}
    cdi = CdiFolder(folder / "cdi", files, driver=NVIDIA_DRIVER, node=Capabilities())
    record = Checkpoint(folder / "state" / "checkpoint.json", files, boot_id="boot")
    preparer = a_preparer(record, cdi)
    for number in range(HELD):
        preparer.prepare(a_claim(f"held-{number}", on=[f"node-0/gpu-{number}"]), gpus)
    draco, peer = Side(), Side()
    for number in range(rounds):
        claim = a_claim(f"claim-{number}", on=[f"node-0/gpu-{HELD}"])
        draco.measure(lambda claim=claim: preparer.prepare(claim, gpus))  # type: ignore[misc]
        whole = msgspec.json.encode(list(record.claims.values()))
        spec = files.read(cdi.path(ClaimUid(claim.metadata.uid)))
        preparer.unprepare(ClaimUid(claim.metadata.uid))

        def anew(whole: bytes = whole, spec: bytes = spec) -> None:
            files.write(folder / "peer" / "checkpoint.json", whole)
            files.write(folder / "peer" / "spec.json", spec)
            files.write(folder / "peer" / "checkpoint.json", whole)

        peer.measure(anew)
    return draco, peer


@click.command()
@click.option("--rounds", default=400, show_default=True, help="Claims to prepare.")
def main(rounds: int) -> None:
    """Count how often preparing a claim of a whole GPU waits for the disk."""
    with tempfile.TemporaryDirectory(prefix="draco-", dir=".") as folder:
        draco, peer = measure(Path(folder), rounds)
    click.echo(f"Draco's agent: {draco}\nA file at every change: {peer}")
    tell(
        Row(
            figure="waits for the disk to prepare a whole GPU (most)",
            measured=f"{max(draco.waits)} (mostly {statistics.median(draco.waits):g}), {draco.median_ms:.1f} ms",
            peer=f"{max(peer.waits)}, {peer.median_ms:.1f} ms with a new file at every change",
            target=f"at most {TARGET}",
            met=max(draco.waits) <= TARGET,
        )
    )
    sys.exit(0 if max(draco.waits) <= TARGET else 1)


if __name__ == "__main__":
    main()
