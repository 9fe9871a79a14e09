"""MIG policies: which GPU belongs to which policy, what that means for it, and the status of each policy.

Owns the way from observed policies and nodes to what is wanted of each GPU, as values. Must not read a clock, write a log or talk
to the API server: the controller carries out the decisions.

Rooms: `matching` (whether a policy selects a GPU, and why not), `boards` (the API's boards and GPUs as planner structs), `decide`
(what policies want of the GPUs of a node), `gpu_state` (how far that is done), `promises` (which devices claims keep),
`warm_ahead` (how many idle instances are ready ahead of claims), `gpu_counts` and `summary` (a policy's status), `releases` (idle
claims in the way of a waiting one), `release_policy` (whether their allocations may be released).
"""
