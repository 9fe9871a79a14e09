"""Preemption for a group: who can be a victim (`victims`), and who is (`victim_selection`). The controller evicts."""
