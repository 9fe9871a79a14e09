"""A rule about shares that MPS holds to their memory. `allocation.share_limits` has what goes together.

Without a cluster, only a selector tells how a GPU is shared: one that no GPU meets but those with MPS.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from draco.allocation.share_limits import ONE_CLAIM, ONE_DAEMON
from draco.cel.device_testing import DeviceTest
from draco.cel.selector import ready_selector
from draco.linting.model import Finding, Manifest, finding
from draco.linting.objects import claims, expression_of, listed, mapping, requests
from draco.resources.api.draco import MemoryLimitBy
from draco.resources.api.slices import Device, DeviceAttribute
from draco.resources.names import ATTRIBUTE_MEMORY_LIMIT, NVIDIA_DRIVER

_RULE: Final = "shares-together"


def check_shares(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Requests for several GPUs with MPS, of which a container can use one."""
    for claim in claims(manifests):
        for request in requests(claim):
            fields = mapping(request.fields.get("exactly"))
            number = fields.get("count")
            if type(number) is not int or number < 2 or not any(map(_wants_mps, listed(fields.get("selectors")))):
                continue
            message = f"it wants {number} GPUs that are shared with MPS, and {ONE_DAEMON}: ask for 1, {ONE_CLAIM}"
            yield finding(_RULE, message, claim.manifest, (*request.path, "exactly", "count"), severity="warning")


def _wants_mps(selector: Any) -> bool:
    return [by for by in MemoryLimitBy if _selects(expression_of(selector), by)] == [MemoryLimitBy.MPS]


@lru_cache(maxsize=256)
def _selects(expression: str, by: MemoryLimitBy) -> bool:
    """Whether a GPU that is shared so, and of which nothing else is known, meets the expression."""
    compiled = ready_selector(expression)
    if isinstance(compiled, str):
        return False
    level = DeviceAttribute(string=by.value)
    gpu = Device(name="gpu-0", attributes={ATTRIBUTE_MEMORY_LIMIT: level}, allow_multiple_allocations=True)
    return DeviceTest([compiled]).says(NVIDIA_DRIVER, gpu) is True
