"""The table of functions: one row per overload, next to the code it runs.

To add a function, add a row to `OVERLOADS` of the module with its code (`overloads` explains rows). Type check, compiler and both
cost models read the table here, by environment, call or id.

Rooms: the specification's functions in `operators` and `standard`; extensions for texts in `strings`, `format`, `urls`,
`named_formats`; lists, sets and optionals in `lists`; quantities and versions in `resources`; addresses in `network`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from draco.cel.functions import (
    format,  # noqa: A004 - named after the function
    lists,
    named_formats,
    network,
    operators,
    resources,
    standard,
    strings,
    urls,
)
from draco.cel.functions.overloads import Binding, Overload, Row, binding, read, row

_AUTHORIZATION: Final = (
    row("authorizer_path", "authorizer.path(string) -> path"),
    row("authorizer_group", "authorizer.group(string) -> group"),
    row("authorizer_serviceaccount", "authorizer.serviceAccount(string, string) -> authorizer"),
    row("groupcheck_resource", "group.resource(string) -> resource"),
    row("resourcecheck_subresource", "resource.subresource(string) -> resource"),
    row("resourcecheck_namespace", "resource.namespace(string) -> resource"),
    row("resourcecheck_name", "resource.name(string) -> resource"),
    row("authorizer_fieldselector", "resource.fieldSelector(string) -> resource"),
    row("authorizer_labelselector", "resource.labelSelector(string) -> resource"),
    row("pathcheck_check", "path.check(string) -> decision"),
    row("resourcecheck_check", "resource.check(string) -> decision"),
    row("decision_errored", "decision.errored() -> bool"),
    row("decision_error", "decision.error() -> string"),
    row("decision_allowed", "decision.allowed() -> bool"),
    row("decision_reason", "decision.reason() -> string"),
)
"""No selector can have an authorizer, but Kubernetes knows these functions, so its errors for their misuse differ."""
_DOTTED: Final = frozenset({"ip.isCanonical", "format.named", *(f"format.{name}" for name in named_formats.FORMATS)})
"""Functions with a dot in their own name, whose first part is also the name of a type."""
_MODULES: Final = (operators, standard, strings, lists, resources, urls, network, format, named_formats)
_ORDER: Final = ("early_positions", "standard", "late_positions", "semver", "lists", "includes")
"""Libraries in the order in which an environment adds them. The two for positions are one library at two places."""


@cache
def _library(name: str) -> tuple[Overload, ...]:
    rows: list[Row] = [each for module in _MODULES for each in module.OVERLOADS.get(name, ())]
    if name == "standard":
        rows += _AUTHORIZATION
    return tuple(read(each, _DOTTED) for each in rows)


@cache
def table(libraries: frozenset[str]) -> Mapping[str, tuple[Overload, ...]]:
    """Overloads of the standard and the named libraries, by function."""
    found: dict[str, list[Overload]] = {}
    for library in _ORDER:
        if library in libraries | {"standard"}:
            for overload in _library("positions" if library.endswith("_positions") else library):
                found.setdefault(overload.function, []).append(overload)
    return {function: tuple(overloads) for function, overloads in found.items()}


@cache
def _everything() -> Mapping[str, tuple[Overload, ...]]:
    return table(frozenset(_ORDER) - {"standard", "early_positions"})


@cache
def by_id() -> Mapping[str, Overload]:
    """Return every overload by its id."""
    return {overload.id: overload for overloads in _everything().values() for overload in overloads}


@cache
def bound(function: str, arguments: int, overload: str | None) -> Binding | None:
    """How to run a call with this number of arguments (with target). None: no such function, or the compiler handles it."""
    if overload is not None:
        return by_id()[overload].binding
    return binding([one for one in _everything().get(function, ()) if len(one.parameters) == arguments])
