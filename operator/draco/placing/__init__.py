"""Placing: which of the places that are free claims get that Draco allocates, and whose pods leave where none is free.

Pure: no I/O, no clock, no logging. What fits on a node is decided by `draco.allocation`, and asked there. Evaluates what tenants
write, so whatever searches belongs into a worker.

Rooms, each knowing only those after it: `wording` (the place of one pod's claims, in words), `preempting` (whose pods leave for a
group), `groups` (places for many pods at once, or for none of them), `search` (the best node and devices for the claims of one
pod), `scoring` (which of two places is better).
"""
