"""DeviceReservations: creates, deletes and reports on their claims. `controller.allocation` decides who gets which devices.

Rooms: `reconciler` (the claims of one reservation), `waiting` (why they have no devices yet). The allocator reads the others:
`held_back_claims` (claims that must wait), `takeovers` (devices kept for a pod's claim).
"""
