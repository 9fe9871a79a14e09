"""`draco layout`."""
