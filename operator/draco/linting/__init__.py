"""What is wrong with manifests before any cluster sees them, and how to put it right.

`lint(manifests)` gives findings; a finding that can be put right carries edits. Everything here works on plain trees: reading
and writing YAML is the caller's.

Rooms: `rules` (by what they look at, and their order), over `objects` (where things stand in manifests), `schema`,
`names` (what NVIDIA's driver publishes) and `model` (findings and edits).
"""
