"""Following collections: list, watch, and the stores they fill."""
