"""`draco maintain`: take devices out of service and bring them back, with a preview."""
