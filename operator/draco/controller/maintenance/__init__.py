"""Reconcilers of DeviceMaintenance and MaintenanceBudget: what they read, and what they write.

Rooms: `reconciler` (one request at a time), `parts` (what draining and Jobs offer to it).
"""
