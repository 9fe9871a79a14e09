"""The search for devices, with the decisions of kube-scheduler."""
