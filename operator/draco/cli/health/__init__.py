"""`draco health`: which GPUs are not healthy, since when, and what to do."""
