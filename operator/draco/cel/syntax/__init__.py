"""Parses the text of an expression to a tree."""
