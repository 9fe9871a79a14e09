"""Who uses how much of the node's GPUs: read at intervals, attributed to containers and claims, reported in a GpuUsage."""
