"""`draco status`."""
