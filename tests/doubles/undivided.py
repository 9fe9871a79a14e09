"""The GPU instances of a node that has none: its GPUs are there, and none of them is divided."""

from contextlib import nullcontext
from typing import Any


class NoInstances:
    """Stands for `ClaimInstances` where claims hold whole GPUs only."""

    lock = nullcontext()

    def observed(self) -> dict[Any, Any]:
        return {}

    def shown(self) -> None:
        """There is nothing to see."""

    def restore(self, _gpus: object) -> list[str]:
        return []

    def verify(self, _claim: object, _gpus: object) -> None:
        """Every GPU is where it is said to be."""

    def whole(self, _claim: object) -> None:
        """Every GPU is undivided."""

    seen_whole = whole


UNDIVIDED: Any = NoInstances()
