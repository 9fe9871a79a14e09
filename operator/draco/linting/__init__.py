"""What is wrong with manifests before any cluster sees them, and how to put it right.

`lint(manifests)` gives findings; a finding that can be put right carries edits. Everything here works on plain trees: reading
and writing YAML is the caller's.

Rooms: findings and edits in `model`; where things stand in manifests in `objects`; rules by what they look at: `versions` (old
forms), `fields` (unknown and misplaced ones), `requests`, `references` (pods and their claims), `sharing`, `taints`, `selectors`;
expressions themselves in `tokens`, `expressions` and, with the names that NVIDIA's driver publishes, `names`; the order of the
rules in `rules`.
"""

from draco.linting.model import Drop, Edit, Finding, Manifest, Move, Path, Put, Severity
from draco.linting.rules import lint

__all__ = ["Drop", "Edit", "Finding", "Manifest", "Move", "Path", "Put", "Severity", "lint"]
