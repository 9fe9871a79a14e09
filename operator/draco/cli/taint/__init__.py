"""`draco taint`: taints on single devices, looked at beforehand, added and removed."""
