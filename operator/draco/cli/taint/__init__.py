"""`draco taint`: preview, add and remove taints on single devices."""
