"""The table of functions: a row per overload, beside the code that it runs.

Adding a function is adding a row to `OVERLOADS` of the module that has its code (see `overloads` for what a row says). Type
check, compiler and both cost models read it here, by environment, by call or by id.

Rooms: what the specification defines in `operators` and `standard`; extensions of texts in `strings`, `format`, `urls`,
`named_formats`; lists, sets and optional values in `lists`; quantities and versions in `resources`; addresses in `network`.
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
"""No selector can have an authorizer, but Kubernetes knows the functions, so its sentences for their misuse differ."""
_DOTTED: Final = frozenset({"ip.isCanonical", "format.named", *(f"format.{name}" for name in named_formats.FORMATS)})
"""Functions whose own name has a dot behind what is also the name of a type."""
_MODULES: Final = (operators, standard, strings, lists, resources, urls, network, format, named_formats)
_ORDER: Final = ("early_positions", "standard", "late_positions", "semver", "lists", "includes")
"""Libraries, in the order in which an environment adds them; those of positions are one library at two places."""


@cache
def _library(name: str) -> tuple[Overload, ...]:
    rows: list[Row] = [each for module in _MODULES for each in module.OVERLOADS.get(name, ())]
    if name == "standard":
        rows += _AUTHORIZATION
    return tuple(read(each, _DOTTED) for each in rows)


@cache
def table(libraries: frozenset[str]) -> Mapping[str, tuple[Overload, ...]]:
    """Overloads by the name of their function, for the named libraries beside the standard ones: those of an environment."""
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
    """Return every overload, by its id."""
    return {overload.id: overload for overloads in _everything().values() for overload in overloads}


@cache
def bound(function: str, arguments: int, overload: str | None) -> Binding | None:
    """Return how a call with so many arguments, target included, runs: by its only possible overload, or by that which fits.

    None where there is no such function, or where the compiler has code of its own for it.
    """
    if overload is not None:
        return by_id()[overload].binding
    return binding([one for one in _everything().get(function, ()) if len(one.parameters) == arguments])


def is_function(name: str) -> bool:
    """Whether a function of that full name exists."""
    return name in _everything()
