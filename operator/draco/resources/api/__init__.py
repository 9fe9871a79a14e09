"""Kinds of the API server as structs: Kubernetes' own and Draco's."""
