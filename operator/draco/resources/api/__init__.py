"""Structs of Kubernetes' and Draco's kinds."""
