"""Evicts running pods: for groups of higher priority (`preemption`, `evicting`), or to restart a whole group (`losses`).

Only this part of the allocation evicts. Must not choose victims: `draco.placing.preempting` does, in a worker.
"""
