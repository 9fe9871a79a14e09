"""Go's own caches, for the builds that we start: beside our programs while somebody builds, and gone when nobody does.

Owns the folder, its removal, and the settings with which every Go of ours runs. They are up to five gigabytes, and of no use once
the programs are there. An interrupted build leaves them behind, so that the next one goes on where it stopped, and removes them.
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
    """Keep the caches during the block; afterwards they are removed, unless it failed or somebody else uses them still.

    Around several builds it has the later ones find what the earlier ones downloaded and compiled.
    """
    with locks.shared(cache / f".{FOLDER}.lock", last=partial(shutil.rmtree, cache / FOLDER, ignore_errors=True)):
        yield


def settings(cache: Path) -> dict[str, str]:
    """Return the environment variables of a Go that builds with these caches."""
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
