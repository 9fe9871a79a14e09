"""Go's own caches: in Draco's cache while a build of Draco's runs, and removed afterwards.

Owns the folder, its removal, and the settings with which Draco runs Go. The caches take up to five gigabytes, and are of no use
once the programs are built. An interrupted build leaves them behind: the next one continues where it stopped, and removes them.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from draco_local.cluster import locks

FOLDER = "go"


@contextmanager
def shared(cache: Path) -> Iterator[None]:
    """Keep the caches during the block; remove them afterwards, unless it failed or another process still uses them.

    Around several builds: the later ones reuse what the earlier ones downloaded and compiled.
    """
    with locks.shared(cache / f".{FOLDER}.lock", last=partial(shutil.rmtree, cache / FOLDER, ignore_errors=True)):
        yield


def settings(cache: Path) -> dict[str, str]:
    """Return the environment variables with which Go uses these caches."""
    folder = (cache / FOLDER).absolute()
    temporary = folder / "tmp"  # in here too, so that what a killed build leaves there goes with the rest
    temporary.mkdir(parents=True, exist_ok=True)
    return {
        "GOCACHE": str(folder / "build"),
        "GOMODCACHE": str(folder / "mod"),
        "GOTMPDIR": str(temporary),
        "GOFLAGS": "-buildvcs=false -modcacherw",  # Go makes modules read-only, and only root could remove them
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
