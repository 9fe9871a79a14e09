"""Rules about HealthPolicies: their conditions and device selectors, checked by `health.conditions` as in the operator."""

from collections.abc import Iterator, Sequence

from draco.cel import CompileError, ready_selector
from draco.health.conditions import check_condition, one_line
from draco.linting.model import Finding, Manifest, TreePath, finding
from draco.linting.objects import at, expression_of, kind_of, listed, mapping, text
from draco.resources.names import DRACO_DOMAIN


def check_health_policies(manifests: Sequence[Manifest], _kubernetes: int) -> Iterator[Finding]:
    """Check that the operator will accept each policy, as far as is visible without a cluster."""
    for index, manifest in enumerate(manifests):
        of_draco = text(manifest.tree.get("apiVersion")).partition("/")[0] == DRACO_DOMAIN
        if kind_of(manifest) != "HealthPolicy" or not of_draco:
            continue
        for number, rule in enumerate(map(mapping, listed(at(manifest.tree, ("spec", "rules"))))):
            path: TreePath = ("spec", "rules", number, "condition")
            if (wrong := _wrong_condition(text(rule.get("condition")))) is not None:
                yield finding("health-condition", f"the condition is invalid: {wrong}", index, path)
        for number, selector in enumerate(map(mapping, listed(at(manifest.tree, ("spec", "deviceSelectors"))))):
            path = ("spec", "deviceSelectors", number, "cel", "expression")
            if isinstance(said := ready_selector(expression_of(selector)), str):
                yield finding("health-selector", f"the selector is invalid: {said}", index, path)


def _wrong_condition(expression: str) -> str | None:
    try:
        check_condition(expression)
    except CompileError as error:
        return one_line(error)
    return None
