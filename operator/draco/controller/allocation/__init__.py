"""Draco as the allocator of the GPUs that MigPolicies hand over to it.

Owns when claims are allocated, and the writes. Where they go is found by `placing`; which claims are Draco's is known to
`allocation.ownership`, and which GPUs are handed over to `controller.mig.handover`.

Rooms: `allocations` decides, one decision after the other. `waiting` has the groups in their order, with what `gang_terms` knows
of pods that start together; `turns` says when each is asked about, by `releases` (what is becoming free), `refusals` (where a pod
could not run) and `preemption` (whose pods leave, and for whom their devices are kept); `foresight` asks for the next claim
beforehand. `writes` allocates, `returns` gives back what `useless` finds, and `group_notes` says why groups wait.

Beside them, each a reconciler: `gates` (scheduling gates), `evicting` (pods that leave for others), `losses` (groups that lost a
pod), `leaks` (PodGroups without one), `holds` (nodes against scale-down). `gpu_policies` is a look-up; `parts` wires all.
"""
