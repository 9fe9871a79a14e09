"""Reads and edits selector expressions as text, keeping the rest as its author wrote it.

Owns what `explanation` and `linting` share. `cel` owns the meaning of expressions; callers know devices and manifests.

Rooms: `tokens` (also of text that does not parse), `accesses` (where attributes and capacities are read), `demands` (the
conditions of a chain of `&&`), `comparisons` (operands, and Kubernetes' order of quantities and versions).
"""
