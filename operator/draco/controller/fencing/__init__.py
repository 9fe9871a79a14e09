"""Keeps new claims off the GPUs of agents that are lost, by taint rules, and lifts the rules when the agents are back.

Rooms: `fences` (the rules), `observed_leases` (for how long each agent's lease has been silent). A pod that runs is left alone.
"""
