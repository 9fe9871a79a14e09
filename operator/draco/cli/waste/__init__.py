"""`draco waste`: GPU hours held and not used, and what they cost."""
