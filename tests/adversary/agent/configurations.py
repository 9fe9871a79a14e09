"""NVIDIA's configurations in allocated claims: their JSON, which one applies, and what it asks for.

Owns what the agent must do with them. Shares no code with the product.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

INTERVALS = ("Default", "Short", "Medium", "Long")
CONTRADICTIONS = ("MPS, too", "Forever", "no field", "MPS in turns", "MPS of 200 %")
"""Configurations that must be refused."""
MPS = "MPS"
"""It concerns whole GPUs only, and must be refused there if nobody keeps MPS daemons on the node."""
HALF = "MPS of 50 %"
Said = tuple[tuple[str, str], ...]
"""Configurations with their sources, least important first."""
SOURCES = ("FromClass", "FromClaim")
CONFIGURED = st.just(()) | st.lists(
    st.tuples(
        st.sampled_from(SOURCES), st.sampled_from(("Long", "Long", "Short", *INTERVALS, *CONTRADICTIONS, MPS, HALF))
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda one: one[0],
).map(lambda said: tuple(sorted(said, key=lambda one: SOURCES.index(one[0]))))
"""Draws configurations; half of the claims have none."""


def as_json(said: Said, driver: str) -> list[Any]:
    """The configurations as an allocation has them."""
    return [{"source": source, "opaque": {"driver": driver, "parameters": _parameters(one)}} for source, one in said]


def _parameters(one: str) -> Any:
    sharing: dict[str, Any] = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": one}}
    if one == "MPS, too":
        sharing = {"strategy": "TimeSlicing", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
    elif one == "no field":
        sharing = {"strategy": "TimeSlicing", "shares": 2}
    elif one == "MPS in turns":
        sharing = {"strategy": "MPS", "timeSlicingConfig": {}}
    elif one == "MPS of 200 %":
        sharing = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 200}}
    elif one == MPS:
        sharing = {"strategy": "MPS"}
    elif one == HALF:
        sharing = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}


def time_slice(said: Said) -> int:
    """What an accepted claim asks for on its whole GPUs."""
    return INTERVALS.index(said[-1][1]) if said and said[-1][1] in INTERVALS else 0


def percentage(said: Said) -> int | None:
    """The part of the threads that an accepted claim's clients of MPS have on its whole GPUs; None without MPS."""
    return {MPS: 100, HALF: 50}.get(said[-1][1]) if said else None


def must_be_refused(said: Said, *, whole: bool, admin: bool, kept: bool) -> bool:
    """Whether the configurations forbid to prepare a claim: with whole GPUs, and with administrative access to one of them.

    `kept`: somebody may keep MPS daemons on the node. The last one applies to whole GPUs. Those that apply to no device must be
    right all the same.
    """
    judged: Sequence[tuple[str, str]] = said[-1:] if whole else said
    mps = whole and percentage(said) is not None
    changes = mps or time_slice(said) > 0
    return (mps and not kept) or any(one in CONTRADICTIONS for _, one in judged) or (admin and changes)
