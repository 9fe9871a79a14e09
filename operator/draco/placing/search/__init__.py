"""Finds the best node and devices for the claims of one pod, among all that `allocate` would accept.

`best` chooses the node, and can ask as if claims were different. `node_search` finds devices on one node, with `set_search`;
`node_kinds` lets it search once for all nodes that are alike.
"""
