"""Who gets what: the search for devices, decided as kube-scheduler decides it."""
