"""Connections to an API server: credentials, and typed requests."""
