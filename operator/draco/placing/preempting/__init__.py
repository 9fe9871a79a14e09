"""Preemption for a group: who can be a victim (`victims`), and who is (`preemption`).

Never evicts: the controller does, through the Eviction API.
"""
