"""`draco selector`."""
