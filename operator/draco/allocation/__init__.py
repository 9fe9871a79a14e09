"""Allocation: what devices there are, what stands in their way, and why a claim stays pending.

Pure: no I/O, no clock, no logging. Must not write anything or evaluate selectors by itself (that is `draco.cel`).

Rooms: `supply` (every device with the one thing that stands in its way, folded into counts), `causes` (why a claim is pending).
"""

from draco.allocation.causes import Causes, RequestCauses, explain_pending
from draco.allocation.supply import DeviceState, Supply, survey

__all__ = ["Causes", "DeviceState", "RequestCauses", "Supply", "explain_pending", "survey"]
