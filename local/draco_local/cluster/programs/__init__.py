"""Kubernetes' programs: where they are, fetched as released, or built from pinned modules."""
