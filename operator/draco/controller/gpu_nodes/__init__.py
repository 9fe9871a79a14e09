"""The only writer of `GpuNode.spec`: what the operator asks of each node's agent.

MigPolicies define how GPUs are partitioned, claims what must stay published, maintenance and HealthPolicies what is tainted, and
the handover which GPUs Draco allocates. All of it reaches the agent in one write.

Rooms: `plan` (the pure plan of the spec), `reconciler` (reads, plans and writes one node at a time).
"""
