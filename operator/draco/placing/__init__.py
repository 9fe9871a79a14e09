"""Where the claims go that Draco allocates."""
