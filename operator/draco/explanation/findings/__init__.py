"""Findings: a verdict per node, and the obstacle of each device for each request."""
