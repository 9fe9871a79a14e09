"""The API server's audit log of writes to claims, which shows who caused a finding.

Owns the policy and the flags. Nothing reads the log but people.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {
            "level": "Request",
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            "resources": [{"group": "resource.k8s.io", "resources": ["resourceclaims", "resourceclaims/status"]}],
        },
        {"level": "None"},
    ],
}
_MOST_MB, _KEPT = 200, 2


def audited(folder: Path) -> Sequence[str | Path]:
    """Flags that make kube-apiserver write `audit.log` in the folder."""
    policy = folder / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(_POLICY))
    return (
        *("--audit-policy-file", policy, "--audit-log-path", folder / "audit.log"),
        *("--audit-log-maxsize", str(_MOST_MB), "--audit-log-maxbackup", str(_KEPT)),
        *("--audit-log-mode", "batch"),  # requests do not wait for the disk
    )
