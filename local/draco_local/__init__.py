"""A local Kubernetes with GPUs that are simulated: for trying Draco, for developing and for testing it.

No part of what runs in a cluster: `draco` does not import it. Its commands join `draco` as entry points.
"""
