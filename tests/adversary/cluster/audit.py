"""The API server's log of who wrote what of claims, so that a finding can be explained whoever it was.

Owns the policy and the flags. Reads nothing: the log is for people, beside the logs of the programs.
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
    """The flags that have kube-apiserver write it to `audit.log` in the folder."""
    policy = folder / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(_POLICY))
    return (
        *("--audit-policy-file", policy, "--audit-log-path", folder / "audit.log"),
        *("--audit-log-maxsize", str(_MOST_MB), "--audit-log-maxbackup", str(_KEPT)),
        *("--audit-log-mode", "batch"),  # no request waits for the disk
    )
