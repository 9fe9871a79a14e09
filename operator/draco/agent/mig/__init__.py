"""GPU instances on this node: what there is, whose it is, and how it becomes what is wanted."""
