"""Explanation: why the claims of a pod are not allocated, what is wrong with them, and what would let them fit.

Pure: no I/O, no clock, no logging. Decides nothing by itself: every verdict is that of `draco.allocation`.

Rooms. What is told, as structs: `model`. The verdict and its causes, folded into counts: `explain`; one device at a time:
`verdicts`. What keeps the pod away from nodes: `placement`. What is wrong with the claims themselves: `problems`. What single
change would do: `nearest`. In words: `wording` (sentences) and `report` (lines for a terminal).
"""
