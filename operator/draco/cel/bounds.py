"""Bounds on what an evaluation may build, for what Kubernetes builds without charging for it.

Owns the numbers and the sentences. Kubernetes would compute on until its memory is exhausted; nothing that a person means comes
near, and what costs by its size reaches Kubernetes' own limit first.
"""

from typing import Final

from draco.cel.errors import EvaluationAborted

MAX_TEXT: Final = 5_000_000
"""Characters of a text. Joining that many costs the whole limit."""
MAX_ITEMS: Final = 1_000_000
"""Elements of a list, as many as `lists.range` gives at most."""


def check_text(length: int) -> None:
    """Raise EvaluationAborted where a text would be longer than any selector needs."""
    if length > MAX_TEXT:
        raise EvaluationAborted(f"the expression makes a text of more than {MAX_TEXT} characters")


def too_costly() -> EvaluationAborted:
    """What Kubernetes says of an evaluation that has reached its cost limit."""
    return EvaluationAborted("operation cancelled: actual cost limit exceeded")


def check_items(count: int) -> None:
    """Raise EvaluationAborted where a list would be longer than any selector needs."""
    if count > MAX_ITEMS:
        raise EvaluationAborted(f"the expression makes a list of more than {MAX_ITEMS} elements")
