"""The current facts of the node, the kinds of change, and who is told of them."""
