"""Pods that run leave for groups of higher priority (`preemption`, `evicting`), or to start again as a whole (`losses`).

Only here does Draco's allocation evict. Must not choose victims: that is `draco.placing.preempting`, in a worker.
"""
