"""Kubernetes' own Go code as a test oracle: small programs that answer questions, one JSON object a line.

Owns building them (once per content, in Draco's cache) and asking them. Run as a module it builds all of them; `make test` does
this first so that no test waits for a compiler.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draco.resources.errors import DracoError
from draco_local.cluster.programs import binaries, gocache, toolchain
from draco_local.cluster.progress import LineProgress, SilentProgress

FOLDER = Path(__file__).parent


def build(name: str) -> Path:
    """The path of the program built from `tests/oracle/<name>`; builds it if its sources changed."""
    sources = sorted(path for path in (FOLDER / name).rglob("*") if path.suffix in {".go", ".mod", ".sum"})
    digest = hashlib.sha256(b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in sources)).hexdigest()
    cache = binaries.cache_folder()
    program = cache / "oracle" / f"{name}-{digest[:16]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        step = f"Building the oracle {name} (usually a minute or less, once)"
        with LineProgress().step(step), gocache.shared(cache):
            go = toolchain.find_go(toolchain.go_directive(FOLDER / name), cache=cache, progress=SilentProgress())
            subprocess.run(
                [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", unfinished, "."],
                cwd=FOLDER / name,
                env=os.environ | gocache.settings(cache),
                check=True,
            )
        unfinished.rename(program)
    return program


class Oracle:
    """One running program. Not thread-safe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, *questions: dict[str, Any]) -> list[dict[str, Any]]:
        """The answers to a few questions, in order. The questions must fit in a pipe."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.writelines(json.dumps(question) + "\n" for question in questions)
        self._process.stdin.flush()
        return [json.loads(self._process.stdout.readline()) for _ in questions]


@contextmanager
def oracle(name: str) -> Iterator[Oracle]:
    """Build and start a program; it ends with the block."""
    with subprocess.Popen([build(name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Oracle(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=10)


def answers(name: str, questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of a separate process to any number of questions, in order."""
    asked = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run([build(name)], input=asked, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def names() -> Iterable[str]:
    """The names of all oracles."""
    return sorted(path.parent.name for path in FOLDER.glob("*/go.mod"))


if __name__ == "__main__":
    with gocache.shared(binaries.cache_folder()):
        for each in names():
            try:
                build(each)
            except (DracoError, subprocess.CalledProcessError) as error:
                sys.exit(f"Error: the oracle {each} could not be built: {error}")
