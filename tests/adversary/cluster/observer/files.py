"""The law of files: driver files that a container gets exist and match the loaded driver.

Owns which specs were seen. A container starts right after its spec was written, so a new spec is judged at once. An older spec is
judged once the driver has been unchanged for long enough that the agent must have rewritten it. Only reads.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.adversary.cluster.observer.hardware import Spec
from tests.adversary.cluster.observer.suspicion import Suspicion

SETTLED_S = 1.0
"""A spec written within this time of a change of files is not judged."""
ANEW_S = 45.0
"""By then every spec was rewritten for a new driver: the agent reads GPUs every ten seconds."""
_CUDA = re.compile(r"libcuda\.so\.(\d+(?:\.\d+)+)")


class FilesLaw:
    """Told of each change of a node's driver."""

    def __init__(self) -> None:
        self._changed: dict[str, float] = {}
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}

    def changed(self, node: str, now: float) -> None:
        """The driver's files, the toolkit or the loaded driver change."""
        self._changed[node] = now

    def look(
        self, specs: Collection[Spec], states: Mapping[str, Mapping[str, Any]], known: Collection[str], now: float
    ) -> Iterator[Suspicion]:
        """Violations. `known` are the nodes whose agents have had time to react."""
        seen, self._seen = self._seen, {}
        for spec in specs:
            key = (spec.node, spec.uid)
            written, since = seen.get(key, (0, now))
            if written != spec.written:
                since = now
            self._seen[key] = (spec.written, since)
            changed = self._changed.get(spec.node, 0.0)
            fresh = written == spec.written and since - changed > SETTLED_S
            loaded = str((states.get(spec.node, {}).get("driver") or {}).get("version") or "")
            settled = spec.node in known and now - changed > ANEW_S and _is_installed(loaded, spec)
            if not fresh and not settled:
                continue
            if fresh and not any(_CUDA.fullmatch(Path(path).name) for path in spec.needs):
                text = f"on node {spec.node} the spec of claim {spec.uid} gives nothing of the driver"
                yield Suspicion("wrong files", f"{spec.node} {spec.uid} {spec.written}", text)
            for why in _wrong(spec, loaded):
                text = f"on node {spec.node} the spec of claim {spec.uid} gives {why}"
                yield Suspicion("wrong files", f"{spec.node} {spec.uid} {spec.written}", text)


def _is_installed(loaded: str, spec: Spec) -> bool:
    """Whether the loaded driver's files exist where the spec takes them from. If not, no spec can be right."""
    folders = {Path(path).parent for path in spec.needs if _CUDA.fullmatch(Path(path).name)}
    files = [file.name for folder in folders if folder.is_dir() for file in folder.iterdir()]
    return any(found[1] == loaded for found in map(_CUDA.fullmatch, files) if found)


def _wrong(spec: Spec, loaded: str) -> Iterator[str]:
    for path in sorted(spec.needs):
        if not Path(path).exists():
            yield f"{path}, which is not there"
        found = _CUDA.fullmatch(Path(path).name)
        if found and loaded and found[1] != loaded:
            yield f"{path}, but the loaded driver is {loaded}"
