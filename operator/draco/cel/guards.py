"""Guards: calls whose form the checker fixed although the types of their arguments were not known.

Owns the test of run-time types against one overload. The checker takes a type that it cannot know (an element of `[]`, of a list
made of an attribute) for that of the first overload that fits, and Kubernetes then refuses values of any other type.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

from draco.cel.check import runtime_name
from draco.cel.dispatch import Function
from draco.cel.environment import STORED_EXPRESSIONS
from draco.cel.overloads import table
from draco.cel.types import Type
from draco.cel.values import MAPS, Value, no_such_overload, type_name, value_of_key

_Test = Callable[[Value], bool]

_UNGUARDED: Final = frozenset({"matches", "size", "sort"})
"""Functions that run the same code for every overload, beside operators."""


def guarded(name: str, overload: str, function: Function) -> Function:
    """The function, for arguments of one of its overloads alone."""
    if name in _UNGUARDED or not name[0].isalpha():
        return function
    overloads = table(STORED_EXPRESSIONS.libraries)[name]
    only = next(one for one in overloads if one.id == overload)
    if sum(len(one.parameters) == len(only.parameters) for one in overloads) == 1:
        return function
    tests = tuple(map(_test, only.parameters))

    def call(*arguments: Value) -> Value:
        for test, argument in zip(tests, arguments, strict=True):
            if not test(argument):
                raise no_such_overload(name, *arguments)
        return function(*arguments)

    return call


def _test(of: Type) -> _Test:
    """Whether a value may stand for a type at run time: of lists and maps only the first element is looked at."""
    if of.is_dyn or of.kind == "variable":
        return lambda _: True
    if of.kind == "list":
        inner = _test(of.parameters[0])
        return lambda value: type(value) is list and (not value or inner(value[0]))
    if of.kind == "map":
        of_key, of_value = map(_test, of.parameters)

        def is_map(value: Value) -> bool:
            if type(value) not in MAPS:
                return False
            return all(of_key(value_of_key(key)) and of_value(one) for key, one in islice(value.items(), 1))

        return is_map
    name = runtime_name(of) if of.name != "type" else "type"
    return lambda value: type_name(value) == name.partition("(")[0]
