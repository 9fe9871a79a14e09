"""Who provides a cluster: this machine's processes, kind, or somebody else."""
