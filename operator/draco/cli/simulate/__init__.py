"""`draco simulate`."""
