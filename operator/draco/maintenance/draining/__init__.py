"""How pods leave devices that are taken out of service."""
