"""Explanation: why the claims of a pod are not allocated, what is wrong with them, and what would let them fit.

Pure: no I/O, no clock, no logging. Decides nothing by itself: every verdict is that of `draco.allocation`.

Rooms. What is told, as structs: `model`. The front door: `explain`. What stands in the way of one device: `verdicts`; of all
devices on all nodes: `survey`, which takes like devices (`rows`) and like nodes (`ground`, `trying`) together; counted:
`folding`, `details`, `nodes`, `together`; one by one, on request: `devices`. Claims that need no search: `allocated`. What
keeps the pod away from nodes: `placement`. What is wrong with the claims themselves: `problems`, with `selection` (which
selector lets which devices through), `dead_ends`, `guards`, `suggestions`, `published` (what there is instead) and
`expressions` (selectors as text). What single change would do: `nearest`, with `changed_claims`, `changed_supply`, `changes`,
and `trials`, which asks the allocator. In words: `wording` (sentences) and `report` (lines for a terminal).
"""
