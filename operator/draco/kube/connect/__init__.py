"""Connections to an API server: who we are there, and typed requests."""
