"""DeviceLimits: how much of Draco's GPUs the claims of a namespace may hold.

Rooms: `enforcement` (refusals in a round of allocation, and their Events), `holdings_cache` (what claims hold), `statuses` (each
limit's status). A claim that holds devices keeps them.
"""
