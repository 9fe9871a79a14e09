"""Allocations that no pod uses are taken back: of what cannot start (`useless`, `returns`), or has no pod any more (`leaks`).

Must not take anything from a pod that runs.
"""
