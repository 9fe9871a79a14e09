"""Checks before an expression runs: its types, its literals and its highest possible cost."""
