"""Whether a claim tolerates a taint."""

from collections.abc import Mapping
from typing import Any


def tolerates(tolerations: tuple[tuple[str, str, str, str], ...], taint: Mapping[str, Any]) -> bool:
    """Whether one of the tolerations matches the taint."""
    return any(
        (not key or key == taint.get("key"))
        and (operator == "Exists" or value == (taint.get("value") or ""))
        and (not effect or effect == taint.get("effect"))
        for key, operator, value, effect in tolerations
    )
