"""`draco maintain`: devices taken out of service and brought back, looked at beforehand."""
