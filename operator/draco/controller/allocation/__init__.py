"""Draco as the allocator of the GPUs that MigPolicies hand over to it.

Owns when claims are allocated, and the writes. Where they go is found by `placing`, in a worker; which claims are Draco's is
known to `allocation.ownership`, and which GPUs are handed over to `controller.mig.handover`.

Rooms, each knowing only those after it: `parts` (wiring), `allocations` (the reconciler: one decision after the other), `asking`
(when each group is asked about), `preempting` and `reclaiming` (what is taken away again, with pods that run and without),
`queue` (what waits, and why), `writing` (what is written to claims, pods and nodes). `gpu_policies` is a look-up.
"""
