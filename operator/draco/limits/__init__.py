"""What tenants may hold: what claims count as, the limits on it, and what is said of both. Pure."""
