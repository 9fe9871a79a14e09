"""`draco reserve`: devices for pods that are yet to come, and how reservations stand."""
