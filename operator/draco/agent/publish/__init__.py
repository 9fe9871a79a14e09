"""What the API server is told of this node: its ResourceSlices and its GpuNode."""
