"""Draco as the allocator of the GPUs that MigPolicies hand over to it.

Owns when claims are allocated, and the writes. Where they go is found by `placing`, in a worker; which claims are Draco's is
known to `draco.allocation.ownership`.

Rooms, each knowing only those after it: `parts` (wiring), `allocations` (the reconciler: read, order, ask, plan, apply), `wakes`
(what wakes it), `rounds` (the plan, pure); side by side, none knowing another, `asking` (when each group is asked about), `queue`
(what waits, in which order, and why), `preempting` and `reclaiming` (what is taken away again, with pods that run and without);
`gangs` and `waiting_group` (what they all speak of), `writing` (what is written to claims, pods and nodes), `ownership` (which
GPUs are Draco's).
"""
