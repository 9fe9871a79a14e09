"""The one writer of `GpuNode.spec`: what the operator asks of the agent of each node.

MigPolicies say how GPUs are divided, claims what must stay published, maintenance and HealthPolicies what is tainted, and the
hand-over which GPUs Draco allocates. All of it reaches the agent in one write.

Rooms: `plan` (the spec, made from what was read), `reconciler` (reads, plans and writes one node at a time).
"""
