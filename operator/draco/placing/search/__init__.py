"""The best node and devices for the claims of one pod, of all that `allocate` would let them have.

`best` chooses the node. `node_search` finds devices on one, by `set_search`, and once for all nodes that are alike by
`node_kinds`. `as_if` asks while things are taken to be otherwise, and leaves the fleet as it was. Must not know of groups but
where the rest of one is.
"""
