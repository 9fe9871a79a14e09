"""Compiled pieces of an expression, closures with what the compiler knows about them, and the frame in which they run."""

from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple, TypeAlias

from draco.cel.errors import EvaluationError
from draco.cel.values.device import DeviceVariable
from draco.cel.values.values import Value

Slots: TypeAlias = list[Value]
"""The variables of one evaluation by number. Number 0 is the cost so far and number 1 the toil (see `bounds`)."""
Run: TypeAlias = Callable[[DeviceVariable, Slots], Value]


class Unset:
    """Placeholder of a variable that has not been computed yet."""


UNSET: Final = Unset()


class Code(NamedTuple):
    """One compiled node."""

    run: Run
    is_constant: bool = False
    value: Value = None
    path: tuple[str, ...] | None = None
    """The path if this is a part of the device known at compile time: `("attributes", "dra.example.com", "model")`."""
    bare: Run | None = None
    """For a variable or a read: the same without the charge for reading it."""


class Variable(NamedTuple):
    """A macro's variable: its slot, and how to compute it on first use."""

    slot: int
    init: Code | None = None
    fails: bool = False
    """Whether the slot may hold an error instead of a value (the running value of a loop)."""


Scope: TypeAlias = Mapping[str, Variable]


Step: TypeAlias = Generator["Step", Code, Code]
"""Compiles a node: yields the steps of the nodes it needs, and returns its code."""


def constant(value: Value) -> Code:
    """Code that always gives the same value."""
    return Code(lambda _device, _slots: value, is_constant=True, value=value)


def failing(message: str) -> Run:
    """Code that always fails."""

    def fail(_device: DeviceVariable, _slots: Slots) -> Value:
        raise EvaluationError(message)

    return fail
