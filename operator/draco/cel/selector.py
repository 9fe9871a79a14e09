"""Selectors: compiled expressions that can be evaluated on devices, and the steps to them (parse, check, compile)."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from draco.cel.checking.check import CheckedExpression, check, check_result
from draco.cel.checking.cost import estimated_cost, is_surely_cheap
from draco.cel.checking.environment import STORED_EXPRESSIONS, Environment
from draco.cel.checking.validate import validate
from draco.cel.errors import Abort, CompileError, EvaluationAborted, EvaluationError, one_line
from draco.cel.evaluation.code import Run, Slots
from draco.cel.evaluation.compile import Compiler
from draco.cel.paths import AttributePath, reads
from draco.cel.syntax.parse import REMEMBERED, parse
from draco.cel.values.device import DeviceVariable
from draco.cel.values.texts import native_complaint
from draco.cel.values.values import Value, type_name


class Selector:
    """A compiled expression. Immutable and thread-safe.

    `paths` is what it reads of a device, complete unless `reads_everything`: two devices that agree there get the same answer.
    They may also differ in an attribute of `compared` (see `Reads`) if both have a string there that is none of the compared
    ones.
    """

    __slots__ = ("_checked", "_environment", "_run", "_slots", "compared", "expression", "paths", "reads_everything")

    def __init__(self, checked: CheckedExpression, environment: Environment) -> None:
        is_cheap = is_surely_cheap(checked.ast)
        self.expression: Final = checked.ast.expression
        self._checked = checked
        self._environment = environment
        compiler = Compiler(checked.overloads, checked.functions, checked.names)
        self._run = compiler.compile(checked.ast.root)
        self._slots: Slots = [0] * compiler.slots
        read = reads(checked.ast.root)
        self.paths: Final[frozenset[AttributePath]] = read.paths
        self.reads_everything: Final[bool] = read.everything
        self.compared: Final[Mapping[AttributePath, frozenset[str]]] = read.compared if is_cheap else {}
        """Empty if the length of a string can decide whether the evaluation exceeds the cost limit."""

    def matches(self, device: DeviceVariable) -> bool:
        """Whether the selector matches the device. Raises EvaluationError with Kubernetes' text."""
        value = _evaluated(self._run, device, self._slots.copy())
        if value is True or value is False:
            return value
        reason = native_complaint(value, "bool")
        raise EvaluationError(f"CEL result of type {type_name(value)} could not be converted to bool: {reason}")

    @property
    def estimated_cost(self) -> int | None:
        """Kubernetes' estimate of the highest cost of an evaluation, or None if it has no bound. Computed on each access."""
        return estimated_cost(self._checked, self._environment)

    def cost(self, device: DeviceVariable) -> int:
        """Return Kubernetes' charge on this device (limit: 1,000,000). Raises EvaluationError."""
        slots = self._slots.copy()
        _evaluated(self._run, device, slots)
        return int(slots[0])


def _evaluated(run: Run, device: DeviceVariable, slots: Slots) -> Value:
    try:
        return run(device, slots)
    except Abort as stopped:
        raise EvaluationAborted(str(stopped)) from None
    except RecursionError:
        raise EvaluationAborted("the expression is nested too deeply to be evaluated") from None


@lru_cache(maxsize=REMEMBERED)
def compile_selector(expression: str, *, environment: Environment = STORED_EXPRESSIONS) -> Selector:
    """Compile a selector as Kubernetes does in this environment. Raises CompileError with Kubernetes' text."""
    checked = check(parse(expression), environment)
    validate(checked)
    check_result(checked, environment)
    try:
        return Selector(checked, environment)
    except Abort as stopped:  # a constant part of it has no value
        raise CompileError(f"compilation failed: {stopped}") from None


@lru_cache(maxsize=1024)
def ready_selector(expression: str) -> Selector | str:
    """The compiled selector from a cache, or its error on one line if it does not compile."""
    try:
        return compile_selector(expression)
    except CompileError as error:
        return one_line(error)
