"""Finds mistakes in manifests before a cluster sees them, and the corrections.

`lint(manifests)` returns findings; a correctable finding carries edits. Works on plain trees: callers read and write YAML.

Rooms: `rules` (by subject, and their order), over `objects` (paths in manifests), `schema` and `model` (findings and edits).
"""
