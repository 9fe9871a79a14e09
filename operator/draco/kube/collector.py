"""The garbage collector of a process that reads lists of long-lived objects.

It would traverse thousands of new objects repeatedly while they are created, and again when they are there. They are counted as
old at once instead. Owns whether the process keeps objects frozen: those stay so. Must not count them, which takes milliseconds.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

_keeps_frozen: Final = Event()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Pause the collector while a list is read, and move what was read to the oldest generation without traversing it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not _keeps_frozen.is_set():
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()


def freeze_for_good() -> None:
    """Collect, and never traverse again what is there now."""
    gc.collect()
    gc.freeze()
    _keeps_frozen.set()
