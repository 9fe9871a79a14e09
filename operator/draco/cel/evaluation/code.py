"""Compiled pieces of an expression: a closure, and what was found out about it beforehand.

Owns the shape that the compiler builds trees of, and the frame that closures run in.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple, TypeAlias

from draco.cel.errors import EvaluationError
from draco.cel.values.device import DeviceVariable
from draco.cel.values.values import Value

Slots: TypeAlias = list[Value]
"""The variables of one evaluation by number; number 0 counts what the evaluation has cost so far, number 1 its toil (see
`bounds`), where that is metered."""
Run: TypeAlias = Callable[[DeviceVariable, Slots], Value]


class Unset:
    """Stands in a variable that has not been computed yet."""


UNSET: Final = Unset()


class Code(NamedTuple):
    """One node, compiled."""

    run: Run
    is_constant: bool = False
    value: Value = None
    """The value, where it is constant."""
    path: tuple[str, ...] | None = None
    """Where it is a part of the device that the text alone tells: `("attributes", "dra.example.com", "model")`."""
    bare: Run | None = None
    """For a variable, or something read out of a value: the same, without the charge for reading it at all."""
    optional_of: Run | None = None
    """For an optional read (`a.?b`): gives the value itself, or UNSET where there is none."""


class Variable(NamedTuple):
    """A name that a macro brings: where its value stands, and how to get it when it is not there yet."""

    slot: int
    init: Code | None = None
    fails: bool = False
    """Whether an error may stand there instead of a value (the running value of a loop)."""
    is_alias: bool = False
    """Whether the name is only another spelling of `init`."""


Scope: TypeAlias = Mapping[str, Variable]


Step: TypeAlias = Generator["Step", Code, Code]
"""How a node is compiled: it yields the steps of what else it needs compiled, and returns its code."""


def constant(value: Value) -> Code:
    """Code that always gives the same value."""
    return Code(lambda _device, _slots: value, is_constant=True, value=value)


def failing(message: str) -> Run:
    """Code that always fails."""

    def fail(_device: DeviceVariable, _slots: Slots) -> Value:
        raise EvaluationError(message)

    return fail
