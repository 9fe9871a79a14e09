"""DeviceLimits: how much the claims of Namespaces may hold of the GPUs that Draco allocates.

Rooms: `enforcement` (what is refused in one round of allocation, and said of it), `holdings` (what claims hold), `statuses`
(what each limit says of itself). A claim that holds devices keeps them.
"""
