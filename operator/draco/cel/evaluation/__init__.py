"""Compiles the tree of an expression to closures and charges for running them."""
