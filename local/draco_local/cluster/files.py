"""Writing small files so that nobody ever sees half of one.

Owns the atomic write. Must not know what the files mean.
"""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step; readers see the old file or the new one, whole. Only its owner can read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
