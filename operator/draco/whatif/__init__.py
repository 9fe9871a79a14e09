"""What if: a cluster as one imagines it, and how claims and pods would fare in it.

Owns the imagined cluster and the trials. Pure: the caller reads what it is made of. Each verdict is that of
`draco.allocation`, each reason that of `draco.explanation`.

Rooms: `trials` (what is tried, and how it goes), over `world` (what is imagined).
"""
