"""`draco health`: unhealthy GPUs, since when, and what to do."""
