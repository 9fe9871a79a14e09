"""Keeps new claims off the GPUs of lost agents with taint rules, and removes the rules when the agents return.

Rooms: `fences` (the rules), `observed_leases` (how long each agent's lease has been silent). Running pods are left alone.
"""
