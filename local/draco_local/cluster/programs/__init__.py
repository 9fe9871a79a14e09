"""Kubernetes' programs: found on this machine, downloaded as released, or built from pinned modules."""
