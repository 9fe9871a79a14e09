"""Allocation: which devices exist, and which of them claims get. Pure: no I/O, no clock, no logging.

Rooms: `search` (kube-scheduler's decision) over `fleet` (devices and their use), `ownership` (what Draco allocates itself), the
claims of a pod (`pod_claims`), and claims that stand for an extended resource (`extended_resources`).
"""
