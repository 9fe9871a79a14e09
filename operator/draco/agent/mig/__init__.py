"""GPU instances on this node: which exist, who owns them, and the changes towards what is wanted."""
