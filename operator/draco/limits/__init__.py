"""What tenants may hold: amounts of claims, DeviceLimits, and their texts. Pure."""
