"""Reconcilers of DeviceMaintenance and MaintenanceBudget: what they read, and what they write.

Rooms: `reconciler` (one request at a time), and what it asks: `snapshots` (what is there), `fleet` (GPUs by pool), `rehearsals`,
`budgets`, `draining` with `eviction_requests`, `jobs`. Beside it: `nodes` (conditions of nodes all of whose devices are out).
"""
