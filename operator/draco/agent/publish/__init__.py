"""What this node publishes: its ResourceSlices and its GpuNode."""
