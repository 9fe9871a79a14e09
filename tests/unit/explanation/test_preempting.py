"""What a pod is told about preemption when others have the devices that it waits for."""

import pytest

from draco.cli.explain.preempting import PreemptionFacts, preemption_text
from draco.explanation.model import Explanation, PendingReason
from draco.explanation.wording import report

LOWER = ["ml/a", "ml/b"]


def said(**facts: object) -> str:
    known = {"priority": 100, "is_permitted": True, **facts}
    return preemption_text(PreemptionFacts(**known))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            {"lower": LOWER},
            "Draco may evict pods of a priority below 100: ml/a, ml/b, where their MigPolicy permits it",
        ),
        (
            {"lower": LOWER, "leaving": ["ml/c"]},
            "pod ml/c is being deleted: Draco waits for it, and evicts others only if that does not suffice",
        ),
        (
            {"lower": LOWER, "leaving": ["ml/c", "ml/d"], "never": True},
            "pods ml/c, ml/d are being deleted: Draco waits for them",
        ),
        ({"lower": LOWER, "never": True}, "Draco evicts nobody for the pod: its preemptionPolicy is Never"),
        (
            {"guarded": ["ml/a"], "budgets": ["ml/train"]},
            "Draco evicts nobody for the pod: PodDisruptionBudget ml/train allows no eviction of ml/a",
        ),
        (
            {"guarded": LOWER, "budgets": ["ml/one", "ml/two"]},
            "Draco evicts nobody for the pod: PodDisruptionBudgets ml/one, ml/two allow no eviction of ml/a, ml/b",
        ),
        (
            {"lower": ["ml/a"], "guarded": ["ml/b"], "budgets": ["ml/train"]},
            (
                "Draco may evict pods of a priority below 100: ml/a, where their MigPolicy permits it; "
                "PodDisruptionBudget ml/train allows no eviction of ml/b"
            ),
        ),
        ({}, "Draco evicts nobody for the pod: none that could leave has a priority below 100"),
        (
            {"is_permitted": False, "lower": LOWER},
            "Draco evicts nobody for the pod: 2 pods of lower priority have devices, but no MigPolicy permits it",
        ),
        ({"is_permitted": False}, ""),
        ({"is_permitted": False, "lower": LOWER, "never": True}, ""),
    ],
)
def test_what_becomes_of_preemption_is_said_in_a_sentence(facts: dict[str, object], text: str) -> None:
    assert said(**facts) == text


def test_it_stands_below_the_summary_of_a_report() -> None:
    told = Explanation(reason=PendingReason.IN_USE, summary="All are in use.", preemption="pod ml/c is being deleted")
    assert list(report(told))[:2] == ["All are in use.", "Pod ml/c is being deleted."]
