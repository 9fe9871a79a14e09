"""Explanation: why the claims of a pod are not allocated, what is wrong with them, and what would let them fit.

Pure: no I/O, no clock, no logging. Decides nothing: every verdict is that of `draco.allocation`.

Rooms, each knowing only those after it: `explain` (the front door), `note` (for an Event), `remedies` (what single change
would do), `findings` (what stands in the way, device by device and node by node), `problems` (what is wrong with the claims
themselves), `selection` (which selector lets which devices through), `wording` (also for a terminal), `model`.
"""
