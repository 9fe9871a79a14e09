"""Closures for function calls: constant arguments are processed once, the rest at each evaluation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from draco.cel.errors import CompileError, EvaluationError
from draco.cel.evaluation.charges import call, call_in_order
from draco.cel.evaluation.code import Code, Run, constant
from draco.cel.functions import bound
from draco.cel.functions.costs import MATCHING
from draco.cel.functions.operators import membership
from draco.cel.functions.overloads import Binding, Function
from draco.cel.functions.standard import CONVERSIONS
from draco.cel.values.bounds import toil_of_finding
from draco.cel.values.regex import compile_pattern, every_match, found, matcher
from draco.cel.values.values import Value

_PARSERS: Final = frozenset({"quantity", "semver", "ip", "cidr", "url"})
_PATTERN_FUNCTIONS: Final = frozenset({"matches", "find", "findAll"})


def compile_call(name: str, overload: str | None, codes: Sequence[Code]) -> Code:
    """Compile a call by full name; `overload` is set if only one is possible. Raises CompileError, also for invalid constants."""
    binding = bound(name, len(codes), overload)
    if binding is None:
        raise CompileError(f"compilation failed: undeclared reference to '{name}'")
    function = binding.run
    runs = tuple(code.run for code in codes)
    if name in CONVERSIONS and len(codes) == 1 and codes[0].is_constant:
        return constant(_at_once(partial(function, codes[0].value)))
    if name in _PARSERS and all(code.is_constant for code in codes):
        parsed = _computed_once(partial(function, *(code.value for code in codes)))
        return Code(call(binding._replace(run=parsed), runs))
    if overload == "in_list" and codes[1].is_constant:
        return _membership(binding, runs, codes[1].value)
    if len(codes) >= 2 and name in _PATTERN_FUNCTIONS and codes[1].is_constant and type(codes[1].value) is str:
        with_pattern = _with_pattern(name, codes[1].value)
        toil = toil_of_finding if name == "findAll" else None
        return Code(call_in_order(Binding(with_pattern, MATCHING.charge, toil), runs))
    stops = name == "format" or (overload is None and name[0].isalpha())
    return Code((call_in_order if stops else call)(binding, runs))


def _membership(binding: Binding, runs: tuple[Run, ...], items: list[Value]) -> Code:
    if not items:
        return constant(value=False)
    test = membership(items)
    if test is None:
        return Code(call(binding, runs))
    run = runs[0]
    return Code(lambda device, slots: test(run(device, slots)))


def _at_once(compute: Callable[[], Value]) -> Value:
    """Compute a result at compile time. Raises CompileError."""
    try:
        return compute()
    except EvaluationError as error:
        raise CompileError(f"program instantiation failed: {error}") from None


def _computed_once(compute: Callable[[], Value]) -> Function:
    """A function that gives the same result for all arguments; if `compute` fails, each call fails the same way."""
    try:
        value = compute()
    except EvaluationError as error:
        return partial(_fail, str(error))
    return lambda *_arguments: value


def _fail(message: str, *_arguments: Value) -> Value:
    raise EvaluationError(message)


def _with_pattern(name: str, pattern: str) -> Callable[..., Value]:
    compiled = _at_once(partial(compile_pattern, pattern))
    if name == "matches":
        run: Callable[..., Value] = matcher(compiled)
    elif name == "find":
        run = partial(found, compiled)
    else:
        run = partial(every_match, compiled)

    def run_pattern(text: Value, _pattern: Value, limit: Value = -1) -> Value:
        if type(text) is not str or type(limit) is not int:
            raise EvaluationError("no such overload")
        return run(text, limit) if name == "findAll" else run(text)

    return run_pattern
