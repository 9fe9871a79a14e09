"""What if: a simulated cluster, and how claims and pods would fare in it.

Owns the simulated cluster and the trials. Pure: the caller does the reading. Verdicts come from `draco.allocation`, reasons from
`draco.explanation`.

Rooms: `trials` (what is tried, and the results), over `world` (the simulated cluster).
"""
