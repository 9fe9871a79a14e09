"""Reads and edits selector expressions as text, keeping the rest as its author wrote it; shared by `explanation` and `linting`.

Rooms: `tokens` (also of text that does not parse), `accesses` (where attributes and capacities are read), `demands` (the
conditions of a chain of `&&`), `comparisons` (operands, and Kubernetes' order of quantities and versions), `corrections` with
`slips` (what is wrong, and what is meant).
"""
