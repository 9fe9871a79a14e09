"""How many GPUs may be out of service together, and which request is next."""
