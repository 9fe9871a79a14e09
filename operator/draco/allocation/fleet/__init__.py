"""What there is: pools, devices, their taints and counters, and which selectors select them."""
