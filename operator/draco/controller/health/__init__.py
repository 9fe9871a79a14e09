"""HealthPolicies: what is decided of each node (`decisions`), the status of policies, and the requests that they open."""
