"""The result of a simulation: lines for people, one document for programs. Owns the layout and the schema."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from draco.explanation.model import PendingReason
from draco.explanation.wording import MORE, brief, capital, report
from draco.resources.api.claims import AllocationResult
from draco.resources.texts import counted, sentence
from draco.resources.written.conversion import written
from draco.whatif.trials import TrialResult, TrialRun

SCHEMA: Final = "draco.dev/simulation/v1"
"""Schema of the document. Fields are only added under one name."""
MOST_NODES: Final = 20
"""Up to this many nodes, copies are counted per node."""


def document(run: TrialRun, notes: Sequence[str]) -> dict[str, Any]:
    """The whole simulation: each claim's allocation as Kubernetes would write it, or why there is none."""
    return {
        "schema": SCHEMA,
        "notes": list(notes),
        "fits": all(attempt.fits for attempt in run.attempts),
        "copies": {"asked": run.copies, "fit": run.fitting, "each": _each(run)},
        "claims": [entry for attempt in run.attempts for entry in _entries(attempt)],
    }


def _each(run: TrialRun) -> dict[str, int]:
    """How many copies of each pod fit, or of each claim that is tried alone."""
    counts = dict.fromkeys((attempt.name for attempt in run.attempts), 0)
    for attempt in run.attempts:
        counts[attempt.name] += attempt.fits
    return counts


def _entries(attempt: TrialResult) -> Iterator[dict[str, Any]]:
    explanation = None if attempt.explanation is None else msgspec.to_builtins(attempt.explanation)
    claims: Sequence[tuple[str | None, AllocationResult | None]] = attempt.claims or [(None, None)]
    for name, allocation in claims:
        yield {
            "claim": name,
            "pod": attempt.pod or None,
            "copy": attempt.copy,
            "node": attempt.node or None,
            "allocation": None if allocation is None else written(allocation),
            "error": attempt.error or None,
            "explanation": explanation,
            "obstacles": msgspec.to_builtins(attempt.obstacles),
        }


def lines(run: TrialRun, notes: Sequence[str], *, verbose: bool) -> Iterator[str]:
    """The same for people. `verbose` shows everything about what does not fit."""
    yield from notes
    if notes:
        yield ""
    if run.copies == 1:
        for attempt in run.attempts:
            yield from _attempt(attempt, verbose=verbose)
    else:
        names = _each(run)
        for name in names:
            yield from _copies(
                name, [attempt for attempt in run.attempts if attempt.name == name], run.copies, verbose=verbose
            )
        if len(names) > 1:
            yield f"All of it together: {run.fitting} of {run.copies} copies fit"
    if not verbose and any(attempt.explanation is not None for attempt in run.attempts):
        yield from ("", MORE)


def _attempt(attempt: TrialResult, *, verbose: bool) -> Iterator[str]:
    if not attempt.fits:
        explanation = attempt.explanation
        bypasses = explanation is not None and explanation.reason is PendingReason.BYPASSES_SCHEDULER
        yield f"{attempt.name}: {'bypasses the scheduler' if bypasses else 'does not fit'}"
        yield from _why(attempt, verbose=verbose)
        return
    yield f"{attempt.name}: fits on {attempt.node}"
    for name, allocation in attempt.claims:
        yield from _devices(name, allocation)
    for each in attempt.obstacles:
        yield f"  {attempt.name} cannot start there: {sentence(each.text)} {sentence(capital(each.remedy))}"


def _devices(name: str, allocation: AllocationResult | None) -> Iterator[str]:
    results = allocation.devices.results if allocation is not None else []
    if not results:
        yield f"  {name}: no devices, because it asks for none"
    for result in results:
        amounts = ", ".join(f"{what} {amount}" for what, amount in result.consumed_capacity.items())
        extra = f" ({amounts})" if amounts else " (administrative access)" if result.admin_access else ""
        yield f"  {name}: {result.request}: {result.driver}/{result.pool}/{result.device}{extra}"


def _why(attempt: TrialResult, *, verbose: bool) -> Iterator[str]:
    explanation = attempt.explanation
    if attempt.error and (
        explanation is None or explanation.error != attempt.error
    ):  # otherwise the explanation starts with the error
        yield f"  {attempt.error[:1].upper()}{attempt.error[1:]}{'' if attempt.error.endswith(('.', '?')) else '.'}"
    if explanation is not None:
        for line in (report if verbose else brief)(explanation):
            yield f"  {line}".rstrip()


def _copies(name: str, attempts: Sequence[TrialResult], copies: int, *, verbose: bool) -> Iterator[str]:
    fitting = [attempt for attempt in attempts if attempt.fits]
    yield f"{name}: {len(fitting)} of {copies} copies fit"
    nodes = Counter(attempt.node for attempt in fitting)
    for node, count in list(nodes.items())[:MOST_NODES]:
        yield f"  {node}: {count}"
    if len(nodes) > MOST_NODES:
        rest = list(nodes.values())[MOST_NODES:]
        yield f"  {counted(len(rest), 'more node')}: {sum(rest)}"
    for attempt in attempts:
        if not attempt.fits:
            yield f"  Copy {attempt.copy} does not fit:"
            yield from (f"  {line}".rstrip() for line in _why(attempt, verbose=verbose))
