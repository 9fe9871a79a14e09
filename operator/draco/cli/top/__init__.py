"""`draco top`: how much of the GPUs is used, and by whom."""
