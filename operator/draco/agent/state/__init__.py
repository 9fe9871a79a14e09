"""What the node is like now: the facts, the kinds of change, and who is told of them."""
