"""What Draco allocates instead of kube-scheduler: which claims, and from when to when which GPUs."""
