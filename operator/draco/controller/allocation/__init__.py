"""Draco as the allocator of the GPUs that MigPolicies hand over to it.

Owns the timing and the writes. `placing` chooses devices, in a worker; `draco.allocation.ownership` knows Draco's claims.

Rooms, each importing only later ones: `parts` (wiring), `allocations` (the reconciler: read, order, ask, plan, apply), `wakes`
(its triggers), `rounds` (the pure plan); then, independent of one another, `asking` (when to ask about each group), `queue` (what
waits, in which order, and why), `preempting` (evicts running pods) and `reclaiming` (takes back unused devices); `gang_reading`
(sizes of groups) and `waiting_group` (shared types), `writing` (writes to claims, pods and nodes), `ownership` (which GPUs are
Draco's).
"""
