"""Reconcilers of DeviceMaintenance and MaintenanceBudget: their reads and writes.

Rooms: `reconciler` (one request at a time), and what it uses: `snapshots` (current state), `fleet` (GPUs by pool), `rehearsals`,
`budgets`, `draining` with `eviction_requests`, `jobs`. Beside it: `nodes` (conditions of fully isolated nodes).
"""
