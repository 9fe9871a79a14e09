"""The vocabulary: API objects as structs, and the value types they carry.

Owns what Draco reads and writes of Kubernetes' and its own kinds, Quantity and SemVer. Must not do I/O or decide anything.

Rooms: `written` (manifests, older versions, what is refused), over `api` (one module for each family of kinds). Beside them:
`kinds` (where each kind is served), `names` (every name that others depend on), `quantity`, `semver`, and words for people.
"""
