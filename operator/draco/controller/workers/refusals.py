"""Why there is no answer, in words.

Owns the sentences about questions that exceeded their budget or failed.
"""

from collections.abc import Sequence

from draco.controller.workers.messages import (
    MEMORY_MIB,
    MOST_STEPS,
    CostlySelector,
    Failed,
    OutOfMemory,
    OverBudget,
)
from draco.resources.api.claims import ResourceClaim

TOO_COSTLY = "TooCostly"
"""The main cause in one word, where a budget did not suffice."""
UNKNOWN = "Unknown"


def refusal(answer: OverBudget | OutOfMemory | Failed, claims: Sequence[ResourceClaim], cpu_s: float) -> str:
    """What is said instead of an answer about the claims, whose budget was `cpu_s`."""
    if isinstance(answer, Failed):
        return f"looking at it failed ({answer.why}); Draco tries again later"
    if isinstance(answer, OutOfMemory):
        return f"it takes more than {MEMORY_MIB} MiB of memory; ask for less in one claim"
    if answer.selector is None:
        return f"it takes more than {cpu_s:g} s of a processor on {answer.devices} devices; ask for less in one claim"
    return f"{_which(answer.selector, claims)} takes {_steps(answer.selector)} on each of {answer.devices} devices; simplify it"


def _which(selector: CostlySelector, claims: Sequence[ResourceClaim]) -> str:
    if selector.device_class:
        return f"selector #{selector.number} of class {selector.device_class}"
    claim = claims[selector.claim].metadata.key
    return f"selector #{selector.number} of request {selector.request} of claim {claim}"


def _steps(selector: CostlySelector) -> str:
    if selector.steps >= MOST_STEPS:
        return f"{MOST_STEPS:,} steps, the most that Kubernetes allows,"
    rounded = round(selector.steps, 2 - len(str(selector.steps)))
    return f"about {rounded:,} steps"
