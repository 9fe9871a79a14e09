"""Selectors as texts that people write and that can be put right: read piece by piece, and changed so that the rest stays.

Owns what `explanation` and `linting` have in common there. What an expression means is `cel`'s; what is published, and what is
wrong, is asked by those who know devices and manifests.

Rooms: `tokens` (also of text that does not parse), `accesses` (where attributes and capacities are read), `demands` (the parts
that must all hold), `comparisons` (of what with what, and as Kubernetes compares quantities and versions).
"""
