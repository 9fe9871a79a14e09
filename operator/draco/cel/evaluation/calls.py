"""Closures for function calls: constant arguments are processed once, the rest at each evaluation. The meter charges."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from draco.cel.errors import CompileError, EvaluationError
from draco.cel.evaluation.charges import Meter, Unmetered
from draco.cel.evaluation.code import Code, Run, Slots, constant, failing
from draco.cel.functions import bound
from draco.cel.functions.costs import MATCHING
from draco.cel.functions.operators import membership
from draco.cel.functions.overloads import Binding
from draco.cel.functions.standard import CONVERSIONS
from draco.cel.values.bounds import toil_of_finding
from draco.cel.values.device import DeviceVariable
from draco.cel.values.regex import compile_pattern, finder, found, matcher
from draco.cel.values.values import Value

_PARSERS: Final = frozenset({"quantity", "semver", "ip", "cidr", "url"})
_PATTERN_FUNCTIONS: Final = frozenset({"matches", "find", "findAll"})
_COMPARISONS: Final = {
    "_==_": "__eq__", "_!=_": "__ne__", "_<_": "__lt__", "_<=_": "__le__", "_>_": "__gt__", "_>=_": "__ge__",
}  # fmt: skip


def compile_call(meter: Meter, name: str, overload: str | None, codes: Sequence[Code]) -> Code:
    """Compile a call by full name; `overload` is set if only one is possible. Raises CompileError, also for invalid constants."""
    binding = bound(name, len(codes), overload)
    if binding is None:
        raise CompileError(f"compilation failed: undeclared reference to '{name}'")
    function = binding.run
    runs = tuple(code.run for code in codes)
    if name in CONVERSIONS and len(codes) == 1 and codes[0].is_constant:
        return constant(_at_once(partial(function, codes[0].value)))
    if name in _PARSERS and isinstance(meter, Unmetered) and all(code.is_constant for code in codes):
        return Code(_computed_once(partial(function, *(code.value for code in codes))))
    if overload == "in_list" and codes[1].is_constant:
        return _membership(meter, binding, runs, codes[1].value)
    if len(codes) >= 2 and name in _PATTERN_FUNCTIONS and codes[1].is_constant and type(codes[1].value) is str:
        with_pattern = _with_pattern(name, codes[1].value)
        toil = toil_of_finding if name == "findAll" else None
        return Code(meter.call_in_order(Binding(with_pattern, MATCHING.charge, toil), runs))
    if name in _COMPARISONS and isinstance(meter, Unmetered) and codes[1].is_constant:
        return Code(_with_constant(name, runs[0], codes[1].value, function))
    stops = name == "format" or (overload is None and name[0].isalpha())
    call = meter.call_in_order if stops else meter.call
    return Code(call(binding, runs))


def _membership(meter: Meter, binding: Binding, runs: tuple[Run, ...], items: list[Value]) -> Code:
    if not items:
        return constant(value=False)
    test = membership(items)
    if test is None:
        return Code(meter.call(binding, runs))
    run = runs[0]
    return Code(meter.fixed(lambda device, slots: test(run(device, slots)), 0))


def _at_once(compute: Callable[[], Value]) -> Value:
    """Compute a result at compile time. Raises CompileError."""
    try:
        return compute()
    except EvaluationError as error:
        raise CompileError(f"program instantiation failed: {error}") from None


def _computed_once(compute: Callable[[], Value]) -> Run:
    """A function's result for constants; if it fails, each evaluation that reaches it fails the same way."""
    try:
        value = compute()
    except EvaluationError as error:
        return failing(str(error))
    return lambda _device, _slots: value


def _with_pattern(name: str, pattern: str) -> Callable[..., Value]:
    compiled = _at_once(partial(compile_pattern, pattern))
    if name == "matches":
        run: Callable[..., Value] = matcher(pattern)
    elif name == "find":
        run = partial(found, compiled)
    else:
        run = finder(pattern)

    def call(text: Value, _pattern: Value, limit: Value = -1) -> Value:
        if type(text) is not str or type(limit) is not int:
            raise EvaluationError("no such overload")
        return run(text, limit) if name == "findAll" else run(text)

    return call


def _with_constant(name: str, left: Run, value: Value, function: Callable[[Value, Value], Value]) -> Run:
    """A comparison with a constant; uses Python's own if both sides have the same plain type."""
    kind = type(value)
    if kind is str and name == "_==_":

        def equals(device: DeviceVariable, slots: Slots) -> Value:
            one = left(device, slots)
            return one == value if type(one) is str else function(one, value)

        return equals
    if kind in {str, int}:
        # Both sides have the same type, so the method never returns NotImplemented.
        return _ordered(name, kind, left, value, function)
    return lambda device, slots: function(left(device, slots), value)


def _ordered(name: str, kind: type, left: Run, value: Value, function: Callable[[Value, Value], Value]) -> Run:
    method = getattr(kind, _COMPARISONS[name])

    def run(device: DeviceVariable, slots: Slots) -> Value:
        one = left(device, slots)
        return method(one, value) if type(one) is kind else function(one, value)

    return run
