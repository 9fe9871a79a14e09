"""MigPolicies: how GPUs are partitioned, which idle instances are kept ahead of claims, and which idle claims give way.

Rooms: `decisions` (the wanted layout of each node), `policies` (the status of policies), `warm_ahead` with `warm_gpus` (idle
instances), `repair` with `release` (idle claims that block a pod). Decisions reach agents through `controller.gpu_nodes`.
"""
