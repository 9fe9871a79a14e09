"""`draco explain`."""
