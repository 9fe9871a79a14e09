"""What is reported of this node: in the status of its claims, and in its GpuNode."""
