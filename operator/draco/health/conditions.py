"""Conditions of health policies: plain CEL over a fault and its GPU.

Owns the two variables and their fields, the permitted language, and the answer for one fault. cel-python's interpreter evaluates:
conditions are few and their answers are cached, so speed does not matter. cel-python has no type checker and mishandles mixed
types, so the selectors' checker runs first, with `fault` and `gpu` declared: it reports unknown fields and wrong types with their
position. Trying conditions on samples would miss errors in branches that no sample takes.

Bounded: no nested loops, none that builds a list, and at most `MOST_STEPS` steps (about 0.1 s). Not thread-safe, like
cel-python's environments. cel-python is imported with the first condition, so that only clusters with a HealthPolicy pay for it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final

import msgspec

from draco.cel import CompileError
from draco.cel.checking.check import CheckedExpression, check, runtime_name
from draco.cel.checking.environment import Environment, expressions_over
from draco.cel.checking.validate import validate
from draco.cel.errors import Issue, refusal
from draco.cel.errors import one_line as mistake_on_one_line
from draco.cel.syntax.ast import Call, Comprehension, Expr, ListExpr, Literal, MapExpr, Select, children, dotted, walk
from draco.cel.syntax.parse import parse
from draco.cel.values import types
from draco.cel.values.types import Type
from draco.resources.api.draco import GpuStatus
from draco.resources.api.health import FaultFamily, FaultScope, GpuFaultStatus
from draco.resources.errors import DracoError
from draco.resources.quantity import Quantity
from draco.resources.texts import most_like, nearest

MOST_STEPS: Final = 5000
"""Nodes that one evaluation may visit, with loops unrolled."""
MOST_DEPTH: Final = 350
"""Levels of cel-python's tree; a parenthesis adds nine, and a level takes five calls of the recursion limit of 2500."""


class ConditionError(DracoError):
    """A condition that cannot be evaluated for a fault."""


class SickGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as conditions see it: its agent's report, its node and its driver."""

    gpu: GpuStatus
    node: str
    driver: str = ""
    driver_version: str = ""


@lru_cache(maxsize=64)
def _bytes(quantity: str) -> int:
    amount = Quantity.read(quantity)
    return amount.value() if amount is not None else 0


_FAULT: Final[Mapping[str, tuple[Type, Callable[[GpuFaultStatus], Any]]]] = {
    "family": (types.STRING, lambda fault: str(fault.family)),
    "name": (types.STRING, lambda fault: fault.name),
    "xid": (types.INT, lambda fault: fault.code or 0),
    "scope": (types.STRING, lambda fault: str(fault.scope)),
    "instance": (types.INT, lambda fault: -1 if fault.instance is None else fault.instance),
    "message": (types.STRING, lambda fault: fault.message),
    "latched": (types.BOOL, lambda fault: fault.latched),
    "count": (types.INT, lambda fault: fault.count),
}
"""The fields of `fault`. Its effect is not one: a policy may have set it."""
_GPU: Final[Mapping[str, tuple[Type, Callable[[SickGpu], Any]]]] = {
    "uuid": (types.STRING, lambda sick: sick.gpu.uuid),
    "device": (types.STRING, lambda sick: sick.gpu.device),
    "node": (types.STRING, lambda sick: sick.node),
    "driver": (types.STRING, lambda sick: sick.driver),
    "product": (types.STRING, lambda sick: sick.gpu.product_name),
    "architecture": (types.STRING, lambda sick: sick.gpu.architecture),
    "memory": (types.INT, lambda sick: _bytes(sick.gpu.memory)),
    "mig": (types.BOOL, lambda sick: sick.gpu.mig is not None and sick.gpu.mig.enabled),
    "pciBusID": (types.STRING, lambda sick: sick.gpu.pci_bus_id),
    "numaNode": (types.INT, lambda sick: -1 if sick.gpu.numa_node is None else sick.gpu.numa_node),
    "driverVersion": (types.STRING, lambda sick: sick.driver_version),
    "faults": (types.list_of(types.STRING), lambda sick: [fault.name for fault in sick.gpu.faults[:_MOST_FAULTS]]),
}
_CONDITIONS: Final[Environment] = expressions_over(
    {
        "fault": {name: of for name, (of, _) in _FAULT.items()},
        "gpu": {name: of for name, (of, _) in _GPU.items()},
    }
)
_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "fault.family": frozenset(FaultFamily),
    "fault.scope": frozenset(FaultScope),
}
"""All values that a field can have."""
_FUNCTIONS: Final = frozenset(
    {"size", "int", "double", "string", "bool", "contains", "startsWith", "endsWith", "matches"}
)
_ORDERINGS: Final = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
_NOT_ORDERED: Final = ([types.INT, types.DOUBLE], [types.INT, types.UINT])
"""Operands that Kubernetes orders and cel-python does not; it does in the other order."""
_LOOPS: Final = frozenset({"all", "exists", "existsOne"})
_MOST_FAULTS: Final = 64
"""The most fault names of a GPU that conditions see."""


class FaultCondition:
    """A checked condition."""

    def __init__(self, expression: str, checked: CheckedExpression) -> None:
        self.expression: Final = expression
        self.reads: Final = frozenset(
            (path.partition(".")[0].removeprefix("."), node.field)
            for node in walk(checked.ast.root)
            if isinstance(node, Select) and (path := dotted(node) or "") and path.count(".") == 1
        )
        """The fields that the answer depends on."""
        self._runner = _program(expression)
        self._answers: dict[tuple[object, ...], bool | str] = {}

    def holds(self, fault: GpuFaultStatus, sick: SickGpu) -> bool:
        """Whether it is true for the fault. Raises ConditionError if it cannot be evaluated."""
        seen = {
            "fault": {name: value(fault) for name, (_, value) in _FAULT.items()},
            "gpu": {name: value(sick) for name, (_, value) in _GPU.items()},
        }
        read = (seen[variable][field] for variable, field in sorted(self.reads))
        basis = tuple(tuple(each) if isinstance(each, list) else each for each in read)
        answer = self._answers.get(basis)
        if answer is None:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            answer = self._answers[basis] = self._evaluated(seen)
        if isinstance(answer, str):
            raise ConditionError(answer)
        return answer

    def _evaluated(self, seen: Mapping[str, Mapping[str, Any]]) -> bool | str:
        celpy = _library()
        try:
            value = self._runner.evaluate({name: celpy.json_to_cel(dict(values)) for name, values in seen.items()})
        except celpy.CELEvalError as error:
            return _first_sentence(error)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            return _first_sentence(error)  # exceptions that the library does not convert into CELEvalError
        if isinstance(value, bool | celpy.celtypes.BoolType):
            return bool(value)
        return f"its result is {type(value).__name__}, not bool"


_REMEMBERED: Final = 1024


@lru_cache(maxsize=2048)
def condition_of(expression: str) -> FaultCondition | CompileError:
    """The compiled condition, or its error; each text is compiled once."""
    try:
        return FaultCondition(expression, check_condition(expression))
    except CompileError as error:
        return error


def load() -> None:
    """Load cel-python and its grammar, which takes a quarter of a second once."""
    _environment()


def check_condition(expression: str) -> CheckedExpression:
    """Check a condition without a fault. Raises CompileError with every finding and its position."""
    checked = check(parse(expression), _CONDITIONS)
    validate(checked)
    if checked.result != types.BOOL:
        raise refusal(expression, [Issue(None, f"a condition must be bool, not {runtime_name(checked.result)}")])
    issues = list(_not_plain(checked)) + list(_never(checked))
    if not issues and (steps := _steps(checked.ast.root)) > MOST_STEPS:
        issues = [Issue(None, f"takes up to {steps} steps; write it with fewer than {MOST_STEPS}")]
    if issues:
        raise refusal(expression, issues)
    return checked


def one_line(error: CompileError) -> str:
    """The error on one line, with the field that was probably meant."""
    said = mistake_on_one_line(error)
    unknown = said.partition("undefined field '")[2].partition("'")[0]
    meant = most_like(unknown, {*_FAULT, *_GPU}, at_least=0.6) if unknown else ""
    return f"{said} (did you mean {meant}?)" if meant else said


def _not_plain(checked: CheckedExpression) -> Iterator[Issue]:
    """Kubernetes' additions to the language, and unbounded constructs."""
    looping = [(checked.ast.root, False)]
    while looping:
        node, inside = looping.pop()
        match node:
            case Call():
                name = checked.functions.get(node, node.function.removeprefix("."))
                if name[0].isalpha() and name not in _FUNCTIONS:
                    known = nearest(name, _FUNCTIONS)
                    yield Issue(node.position, f"a condition cannot call '{name}'{known.rstrip('.')}")
                elif name in _ORDERINGS and (kinds := [checked.types[each] for each in node.arguments]) in _NOT_ORDERED:
                    said = f"a condition cannot compare int with {runtime_name(kinds[1])}"
                    yield Issue(node.position, f"{said}; convert one with double() or int()")
                elif name in {"_?._", "_[?_]"}:
                    yield Issue(node.position, "a condition needs no '?': every field has a value")
            case ListExpr() if node.optional:
                yield Issue(node.position, "a condition cannot have optional elements")
            case MapExpr() if any(entry.is_optional for entry in node.entries):
                yield Issue(node.position, "a condition cannot have optional entries")
            case Comprehension() if node.macro not in _LOOPS or node.second_variable is not None:
                yield Issue(node.position, "a condition can loop only with all, exists and exists_one")
            case Comprehension() if inside:
                yield Issue(node.position, "a condition cannot have a loop inside another")
        is_loop = isinstance(node, Comprehension)
        if not (isinstance(node, Comprehension) and node.macro in _LOOPS):
            looping.extend((part, inside or is_loop) for part in children(node))
        else:
            looping.extend((part, True) for part in (node.range, node.body))


def _never(checked: CheckedExpression) -> Iterator[Issue]:
    """Comparisons with values that a field never has: mistakes that would otherwise show only when a GPU fails."""
    for node in walk(checked.ast.root):
        if not isinstance(node, Call) or node.function not in {"_==_", "_!=_", "@in"}:
            continue
        for one, other in (node.arguments, node.arguments[::-1]):
            field = dotted(one) or ""
            allowed = _VALUES.get(field.removeprefix("."))
            for literal in _literals(other) if allowed else ():
                if allowed and isinstance(literal.value, str) and literal.value not in allowed:
                    known = ", ".join(sorted(allowed))
                    yield Issue(literal.position, f"{field} is never '{literal.value}'; it is one of {known}")


def _literals(node: Expr) -> list[Literal]:
    if isinstance(node, ListExpr):
        return [each for each in node.elements if isinstance(each, Literal)]
    return [node] if isinstance(node, Literal) else []


def _steps(root: Expr) -> int:
    """The most nodes that an evaluation visits. Loops are not nested, and no list grows in a loop."""
    nodes = list(walk(root))
    longest = max(_MOST_FAULTS, sum(len(node.elements) for node in nodes if isinstance(node, ListExpr)))
    longest = max(longest, sum(len(node.entries) for node in nodes if isinstance(node, MapExpr)))
    loops = [node for node in nodes if isinstance(node, Comprehension)]
    return len(nodes) + sum(longest * sum(1 for _ in walk(loop.body)) for loop in loops)


def _first_sentence(error: Exception) -> str:
    said = error.args[0] if error.args and isinstance(error.args[0], str) else type(error).__name__
    return " ".join(said.split())[:120]


def _program(expression: str) -> Any:
    """cel-python's own program. The condition is checked already, so only what cel-python cannot read fails here."""
    celpy = _library()
    try:
        tree = _environment().compile(expression)
    except (celpy.CELParseError, RecursionError) as error:
        raise refusal(expression, [Issue(None, f"cel-python cannot read it: {_first_sentence(error)}")]) from None
    if _depth(tree) > MOST_DEPTH:
        raise refusal(expression, [Issue(None, "is nested too deeply; write it with fewer parentheses")])
    return _environment().program(tree)


def _depth(tree: Any) -> int:
    deepest = 0
    waiting = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting.extend((part, depth + 1) for part in getattr(node, "children", ()))
    return deepest


@cache
def _environment() -> Any:
    celpy = _library()
    return celpy.Environment(runner_class=celpy.InterpretedRunner)  # the compiled runner is wrong about has()


@cache
def _library() -> Any:
    import celpy  # noqa: PLC0415 - with its grammar 0.3 s, which only those pay who have a HealthPolicy

    return celpy
