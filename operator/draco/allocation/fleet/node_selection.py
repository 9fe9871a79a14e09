"""Matches node selectors against a node's labels and name. As in kube-scheduler, an invalid one is an error, no mismatch."""

import re
from collections.abc import Mapping
from typing import Final

from draco.allocation.errors import AllocationError
from draco.resources.api.core import Node
from draco.resources.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, requirement_holds

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_MAX_NAME = 63
_MAX_SUBDOMAIN = 253
_MAX_INT64: Final = 2**63 - 1


def targets(node: Node, *, node_name: str | None, all_nodes: bool | None, node_selector: NodeSelector | None) -> bool:
    """Whether a slice or device with these fields is for `node`. Raises AllocationError for an invalid selector."""
    if node_name:
        return node_name == node.metadata.name
    if all_nodes:
        return True
    return node_selector is not None and selects(node_selector, node)


def selects(selector: NodeSelector, node: Node) -> bool:
    """Whether one term matches; a term without requirements never does. Raises AllocationError if any term is invalid."""
    terms = [term for term in selector.node_selector_terms if term.match_expressions or term.match_fields]
    for term in terms:
        _validate(term)
    return any(_holds(term, node) for term in terms)


def _holds(term: NodeSelectorTerm, node: Node) -> bool:
    fields = {"metadata.name": node.metadata.name}
    return all(_label_holds(each, node.metadata.labels) for each in term.match_expressions) and all(
        (fields.get(each.key, "") == each.values[0]) is (each.operator == "In") for each in term.match_fields
    )


def _label_holds(wanted: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(wanted.key)
    if wanted.operator not in {"Gt", "Lt"}:
        return requirement_holds(wanted, value)
    number = _int64(value) if value is not None else None
    limit = _int64(wanted.values[0])
    if number is None or limit is None:
        return False
    return number > limit if wanted.operator == "Gt" else number < limit


def _validate(term: NodeSelectorTerm) -> None:
    for each in term.match_expressions:
        _validate_key(each.key)
        count = len(each.values)
        match each.operator:
            case "In" | "NotIn":
                valid = count > 0
            case "Exists" | "DoesNotExist":
                valid = count == 0
            case "Gt" | "Lt":
                valid = count == 1 and _int64(each.values[0]) is not None
            case _:
                raise AllocationError(f'a node selector uses the unknown operator "{each.operator}"')
        if not valid or not all(not one or (len(one) <= _MAX_NAME and _NAME.fullmatch(one)) for one in each.values):
            raise AllocationError(f"a node selector has values that {each.operator} cannot take: {each.values}")
    for each in term.match_fields:
        if each.operator not in {"In", "NotIn"} or len(each.values) != 1:
            raise AllocationError(f'a node selector must compare the field "{each.key}" by In or NotIn with one value')


def _validate_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    valid = _NAME.fullmatch(name) is not None and len(name) <= _MAX_NAME
    if slash:
        valid = valid and _SUBDOMAIN.fullmatch(prefix) is not None and len(prefix) <= _MAX_SUBDOMAIN
    if not valid:
        raise AllocationError(f'a node selector asks for the label "{key}", which is not a valid label key')


def _int64(text: str) -> int | None:
    if _INTEGER.fullmatch(text) is None or len(text) > _MAX_NAME:
        return None
    number = int(text)
    return number if -_MAX_INT64 - 1 <= number <= _MAX_INT64 else None
