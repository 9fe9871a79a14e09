"""How many GPUs may be out of service at once, and whose turn it is."""
