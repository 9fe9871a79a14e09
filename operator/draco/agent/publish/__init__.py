"""What this node publishes: its ResourceSlices."""
