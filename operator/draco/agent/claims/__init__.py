"""Prepares and unprepares claims on this node, and writes what their containers get."""
