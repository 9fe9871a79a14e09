"""Whose pods leave so that a group gets its devices: who may be made to (`victims`), and who it is to be (`preemption`).

Must not evict anybody: the controller does, through the Eviction API.
"""
