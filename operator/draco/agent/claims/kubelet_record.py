"""What kubelet's own record says of a claim, for when ours was lost.

Owns reading it. It is JSON whose shape differs between releases; it contains the uid of every claim that kubelet has prepared.
"""

from pathlib import Path

from draco.resources.names import ClaimUid

KUBELET_RECORD = "dra_manager_state"
"""Below kubelet's folder."""


def denies(kubelet_record: Path, uid: ClaimUid) -> bool:
    """Whether kubelet's record can be read and does not name a claim."""
    try:
        return uid not in kubelet_record.read_text()
    except (OSError, UnicodeDecodeError):
        return False
