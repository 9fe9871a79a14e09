"""Allocation: what devices there are, and which of them claims get.

Pure: no I/O, no clock, no logging. Must not write anything or evaluate selectors itself (that is `draco.cel`).

Rooms: `search` (who gets what, as kube-scheduler decides), over `fleet` (what there is, what is in use). Beside them: the claims
of a pod (`pod_claims`), also those that stand for an extended resource (`extended_resources`).
"""
