"""Placing: which free devices the claims get that Draco allocates, and whose pods are preempted if none are free.

Pure: no I/O, no clock, no logging. Evaluates tenants' selectors, so searches must run in a worker. Each room knows only those
after it: `wording` (places of one pod's claims, in words), `preempting` (victims for a group), `groups` (places for all pods of a
group or none), `search` (the best node and devices for one pod's claims), `scoring` (compares places).
"""
