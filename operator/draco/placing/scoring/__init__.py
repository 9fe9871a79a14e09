"""Compares places: capability lost on their GPUs, distance between devices, and use of nodes. Does not search."""
