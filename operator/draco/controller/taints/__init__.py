"""Reconcilers of DeviceTaintRules and DeviceMaintenance: how far they reach, and what they put on devices."""
