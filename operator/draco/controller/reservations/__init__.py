"""Makes and deletes the claims of DeviceReservations."""
