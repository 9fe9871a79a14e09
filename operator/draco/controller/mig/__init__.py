"""Reconcilers of MigPolicies: what is wanted of each node's GPUs, and where each policy stands."""
