"""Fencing: what is seen of the agents' leases, and the taint rules that keep new claims off the GPUs of those that are lost."""
