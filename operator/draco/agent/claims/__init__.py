"""Claims on this node: prepared, given up, and what a container gets of them."""
