"""Reconcilers of claims: what their authors are told, and which idle ones make room."""
