"""The vocabulary: API objects as structs, and their value types. No I/O, no decisions.

Rooms: `written` (manifests, older versions, API validation) over `api` (one module per family of kinds). Beside them: `kinds`
(where each kind is served), `names` (all shared names), `quantity`, `semver`, `windows` and `texts` for people.
"""
