"""`draco reserve`: reserve devices for future pods, and list reservations."""
