"""Health: which faults GPUs have, and what is done about them.

Owns the table of faults, the ledger of each GPU, and what a HealthPolicy makes of it, as pure functions. Must not read a clock,
write a log, call NVML or talk to the API server: the agent and the controller do.
"""
