"""The agent's durable record: prepared claims, owned instances and known GPUs."""
