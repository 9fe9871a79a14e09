"""MIG policies: which GPU belongs to which policy, what that means for it, and where each policy stands.

Owns the way from what is seen of policies and nodes to what is wanted of each GPU, as values. Must not read a clock, write a log
or talk to the API server: the controller carries out what is decided here.

Rooms: `matching` (whether a policy selects a GPU, and why not), `boards` (boards and GPUs of the API as the planner knows them,
what an agent will do), `decide` (what a policy wants of one GPU, and of all of a node), `gpu_state` (how far that is so),
`promises` (which devices claims keep there), `warm_ahead` (how many idle instances are ready ahead of claims), `summary` (one
policy's status), `releases` (idle claims in the way of a waiting one), `release_policy` (whether what they hold may be taken).
"""
