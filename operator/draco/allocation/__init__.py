"""Allocation: what devices there are, which of them claims get, and why a claim stays pending.

Pure: no I/O, no clock, no logging. Must not write anything or evaluate selectors by itself (that is `draco.cel`).

Rooms. What there is: `inventory` (slices and rules as they come and go), `pools` (a pool as one node sees it),
`node_selection`, `node_rows`, `columns` (equal values, once), `rowwise` (all rows at once), `selectors` (outcomes, once per
combination of values). What is in use: `state`. All of it together, kept up to date: `fleet`. Who gets what, as kube-scheduler
decides: `allocate`, with `requests`, `search`, `attempt`, `constraints`, `counters`, `capacity`, `results`; on which node:
`candidates`, `fitting`. Why a claim is pending: `supply` (every device with the one thing that stands in its way, folded into
counts), and `causes`.
"""

from draco.allocation.causes import Causes, RequestCauses, explain_pending
from draco.allocation.supply import DeviceState, Supply, survey

__all__ = ["Causes", "DeviceState", "RequestCauses", "Supply", "explain_pending", "survey"]
