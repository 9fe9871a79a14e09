"""The vocabulary: API objects as structs, and the value types they carry.

Owns what Draco reads and writes of Kubernetes' and its own kinds, Quantity and SemVer. Must not do I/O or decide anything.

Rooms: `base` and `meta` (what every object shares), `claims`, `classes`, `slices`, `taints`, `core` (pods and nodes),
`draco` (our own kinds), `kinds` (where each kind is served), `names` (every name that others depend on),
`partition_names` (what the name of a partition says), `quantity`, `semver`.
"""
