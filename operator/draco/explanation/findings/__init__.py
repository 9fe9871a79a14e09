"""What is found: for each node a verdict, for each device and request what stands in the way."""
