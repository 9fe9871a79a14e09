"""Why the Eviction API refuses a pod: which PodDisruptionBudget, and whether waiting helps.

Owns the reading of budgets as the API server applies them, and the messages. A budget may have changed since a pod was refused.
"""

from collections.abc import Iterable

from draco.resources.api.core import Pod, PodDisruptionBudget
from draco.resources.texts import are, counted, listed

ENDS_BY_ITSELF = "; it is tried again"
"""Ends a reason that may pass without a person's help."""


def covering(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> list[PodDisruptionBudget]:
    """The budgets that cover the pod, by name."""
    found = [
        each
        for each in budgets
        if each.metadata.namespace == pod.metadata.namespace
        and each.spec.selector is not None
        and each.spec.selector.selects(pod.metadata.labels)
    ]
    return sorted(found, key=lambda each: each.metadata.key)


def never_allows(budget: PodDisruptionBudget) -> bool:
    """Whether it allows no disruption even while all pods are healthy."""
    if budget.spec.max_unavailable in {0, "0", "0%"} or budget.spec.min_available == "100%":
        return True
    status = budget.status
    return status.disruptions_allowed == 0 and 0 < status.expected_pods <= status.desired_healthy


def why_refused(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> str:
    """Why the pod's eviction was refused; "" if no budget covers the pod."""
    found = covering(pod, budgets)
    if not found:
        return ""
    if len(found) > 1:
        names = listed([each.metadata.key for each in found])
        return f"PodDisruptionBudgets {names} cover it, and the Eviction API evicts no pod with more than one: leave only one"
    budget, status, name = found[0], found[0].status, found[0].metadata.key
    if never_allows(budget):
        return f"PodDisruptionBudget {name} can never be met, {_wants(budget)}: change it, or delete the pod"
    if status.disruptions_allowed <= 0:
        healthy = f"{counted(status.current_healthy, 'pod')} {are(status.current_healthy)} healthy"
        wanted = f"it wants {status.desired_healthy}"
        return f"PodDisruptionBudget {name} allows no eviction now ({healthy} and {wanted}){ENDS_BY_ITSELF}"
    # Another pod used up the allowance when this one was refused.
    return f"PodDisruptionBudget {name} allows {status.disruptions_allowed} at a time{ENDS_BY_ITSELF}"


def what_blocks(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> str:
    """Why the pod's eviction would be refused now; "" if it would not be."""
    found = covering(pod, budgets)
    if len(found) == 1 and found[0].status.disruptions_allowed > 0:
        return ""
    return why_refused(pod, found)


def _wants(budget: PodDisruptionBudget) -> str:
    if budget.spec.max_unavailable is not None and budget.spec.min_available is None:
        return f"its maxUnavailable is {budget.spec.max_unavailable}"
    expected = budget.status.expected_pods
    least = f"its minAvailable is {budget.spec.min_available}"
    return f"{least} of {counted(expected, 'pod')}" if expected else least
