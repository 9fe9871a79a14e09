"""How a pod chooses nodes by labels of their GPUs, and which of that its claims can say instead.

Owns which expressions must all hold, so that a selector in each claim means the same. Alternatives and preferences stay.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from draco.linting.model import DropField, Edit, TreePath
from draco.linting.objects import WrittenPodSpec, at, listed, mapping, text
from draco.migration.node_labels import CHOSEN_BY_ADMINS, MEMORY, PREFIXES, PRODUCT, selector

_TERMS: Final[TreePath] = (
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
)
_PREFERRED: Final[TreePath] = ("affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")


class KeptExpression(NamedTuple):
    """An expression that goes on choosing nodes, and why."""

    path: TreePath
    sentence: str


class NodeChoice(NamedTuple):
    """The selectors for every claim, the edits that remove what they replace, and what stays."""

    selectors: Sequence[str]
    edits: Sequence[Edit]
    kept: Sequence[KeptExpression]


class _Expression(NamedTuple):
    path: TreePath
    label: str
    operator: str
    values: Sequence[Any]


def products(pod: WrittenPodSpec) -> Iterator[tuple[TreePath, str]]:
    """Each product that the pod's nodes must or may have, with its place."""
    for each in (*_selected(pod), *_expressions(pod)):
        if each.label == PRODUCT:
            yield from ((each.path, text(value)) for value in each.values)


def node_choice(pod: WrittenPodSpec, *, has_mig: bool) -> NodeChoice:
    """What becomes of the pod's choice of nodes. `has_mig`: it asks for MIG devices, too, whose memory is not the GPU's."""
    selectors: dict[str, None] = {}
    gone: list[TreePath] = []
    kept: list[KeptExpression] = []
    alternatives = len(listed(at(pod.spec, _TERMS))) > 1
    for each in (*_selected(pod), *_expressions(pod)):
        if not each.label.startswith(PREFIXES) or each.label.startswith(CHOSEN_BY_ADMINS):
            continue
        is_alternative = alternatives and "affinity" in each.path
        found = None
        if not is_alternative and all(isinstance(value, str) for value in each.values):
            found = selector(each.label, each.operator, each.values)
        if found is None or (has_mig and each.label == MEMORY):
            kept.append(KeptExpression(each.path, _why(each.label, is_alternative=is_alternative, equal=found)))
            continue
        gone.append(each.path)
        if found:
            selectors[found] = None
    kept += _preferred(pod)
    return NodeChoice(list(selectors), [DropField((*pod.path, *path)) for path in _whole(pod, gone)], kept)


def _selected(pod: WrittenPodSpec) -> Iterator[_Expression]:
    for label, value in mapping(pod.spec.get("nodeSelector")).items():
        yield _Expression(("nodeSelector", label), label, "In", [value])


def _expressions(pod: WrittenPodSpec) -> Iterator[_Expression]:
    for number, term in enumerate(listed(at(pod.spec, _TERMS))):
        for index, each in enumerate(map(mapping, listed(mapping(term).get("matchExpressions")))):
            path = (*_TERMS, number, "matchExpressions", index)
            yield _Expression(path, text(each.get("key")), text(each.get("operator")), listed(each.get("values")))


def _why(label: str, *, is_alternative: bool, equal: str | None) -> str:
    if is_alternative:
        return (
            f"the terms of its node affinity are alternatives, so {label} goes on choosing nodes, and feature discovery has to "
            "label them. Use one term, or requests with firstAvailable."
        )
    if equal is not None:
        return (
            f"{label} is the memory of the whole GPU, of which a MIG device has a part: it goes on choosing nodes, and feature "
            "discovery has to label them. Leave it out, or select the product."
        )
    return (
        f"no attribute of a device says what {label} says of its node: it goes on choosing nodes, and feature discovery has to "
        "label them. Leave it out, or label the nodes yourself."
    )


def _preferred(pod: WrittenPodSpec) -> Iterator[KeptExpression]:
    for number, each in enumerate(listed(at(pod.spec, _PREFERRED))):
        for expression in map(mapping, listed(at(mapping(each), ("preference", "matchExpressions")))):
            label = text(expression.get("key"))
            if label.startswith(PREFIXES) and not label.startswith(CHOSEN_BY_ADMINS):
                yield KeptExpression(
                    (*_PREFERRED, number),
                    f"it prefers nodes by {label}: this stays, and feature discovery has to label them. To prefer devices, write "
                    "requests with firstAvailable.",
                )


def _whole(pod: WrittenPodSpec, gone: Sequence[TreePath]) -> list[TreePath]:
    """The same with each container that would be left empty: an empty term selects no node. Last items first."""
    removed = set(gone)
    for path in sorted(gone, key=len, reverse=True):
        holder = path[:-1]
        while holder and all((*holder, key) in removed for key in _keys(at(pod.spec, holder))):
            removed = {each for each in removed if each[: len(holder)] != holder} | {holder}
            holder = holder[:-1]
    return sorted(removed, key=lambda path: [(isinstance(step, str), step) for step in path], reverse=True)


def _keys(holder: Any) -> Sequence[str | int]:
    return list(holder) if isinstance(holder, dict) else range(len(holder or ()))
