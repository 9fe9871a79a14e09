"""Which claims and GPUs Draco allocates instead of kube-scheduler, and how GPUs are handed over."""
