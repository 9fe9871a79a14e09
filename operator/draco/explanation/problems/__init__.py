"""Defects of claims themselves, whatever is free."""
