"""`draco lint`."""
