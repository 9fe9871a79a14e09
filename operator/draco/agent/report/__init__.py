"""What is said of this node: in the status of its claims, and in its GpuNode."""
