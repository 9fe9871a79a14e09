"""Carries out DeviceMaintenance: the reconciler of requests, and the parts of it that evict pods and run Jobs."""
