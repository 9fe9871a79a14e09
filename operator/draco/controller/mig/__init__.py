"""MigPolicies: how GPUs are divided, what idle instances are kept ahead of claims, and which idle claims make room.

Rooms: `decisions` (what each node's GPUs are to be), `policies` (the status of policies), `warm_ahead` with `warm_gpus` (idle
instances), `repair` with `release` (idle claims in the way of a pod). What is decided reaches agents through
`controller.gpu_nodes`.
"""
