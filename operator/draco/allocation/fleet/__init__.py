"""Pools, devices, their taints and counters, and which selectors match them."""
