"""Explains why the claims of a pod are not allocated, what is wrong with them, and what would let them fit.

Pure: no I/O, no clock, no logging. Decides nothing: every verdict comes from `draco.allocation`.

Rooms, each importing only those after it: `explain` (the entry point), `note` (for an Event), `remedies` (which single change
would help), `findings` (the obstacles, per device and node), `problems` (defects of the claims themselves), `selection` (which
selector admits which devices), `wording` (also for a terminal), `model`.
"""
