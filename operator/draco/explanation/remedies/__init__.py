"""Finds single changes that would let the claims of a pod fit."""
