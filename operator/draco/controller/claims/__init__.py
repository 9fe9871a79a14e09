"""Reconcilers of claims: explanations and warnings for their authors, and which idle ones make room."""
