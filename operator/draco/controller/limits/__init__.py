"""DeviceLimits: what claims hold, what Draco therefore does not allocate, and what each limit says of itself."""
