"""Whether an expression may run: its types, its literals, and the most that it can cost."""
