"""Draco as the allocator of the GPUs that MigPolicies hand over to it."""
