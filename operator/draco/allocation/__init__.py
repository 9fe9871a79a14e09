"""Allocation: what devices there are, and which of them claims get.

Pure: no I/O, no clock, no logging. Must not write anything or evaluate selectors by itself (that is `draco.cel`).

Rooms. What there is: `inventory` (slices and rules as they come and go), `pools` (a pool as one node sees it),
`node_selection`, `node_rows`, `columns` (equal values, once), `rowwise` (all rows at once), `selectors` (outcomes, once per
combination of values). What is in use: `state`. All of it together, kept up to date: `fleet`. Who gets what, as kube-scheduler
decides: `allocate`, with `requests`, `search`, `attempt`, `constraints`, `counters`, `capacity`, `results`; on which node:
`candidates`, `fitting`. Counts of devices by what stands in their way, whoever asks: `supply`. Which devices are the same
hardware: `hardware`.
"""

from draco.allocation.supply import DeviceState, Survey, survey

__all__ = ["DeviceState", "Survey", "survey"]
