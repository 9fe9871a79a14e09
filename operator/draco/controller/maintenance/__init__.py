"""Reconcilers of DeviceMaintenance and MaintenanceBudget: what they read, and what they write.

Rooms: `reconciler` (one request at a time), and what it asks: `sights`, `rehearsals`, `budgets`, `draining`, `jobs`.
"""
