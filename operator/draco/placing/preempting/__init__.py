"""Preemption for a group: who can be a victim (`victims`), and who is (`preemption`). The controller evicts."""
