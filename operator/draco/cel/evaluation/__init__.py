"""From the tree of an expression to closures, and what running them is charged for."""
