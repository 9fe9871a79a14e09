"""The GPU instances of a node without any: its GPUs are present, and none is divided."""

from contextlib import nullcontext
from typing import Any


class NoInstances:
    """Stands for `ClaimInstances` where claims hold whole GPUs only."""

    lock = nullcontext()

    def observed(self) -> dict[Any, Any]:
        return {}

    def shown(self) -> None:
        """There is nothing to show."""

    def restore(self, _gpus: object) -> list[str]:
        return []

    def verify(self, _claim: object, _gpus: object) -> None:
        """Every GPU is where the claim says."""

    def whole(self, _claim: object) -> None:
        """Every GPU is undivided."""

    seen_whole = whole


UNDIVIDED: Any = NoInstances()
