"""Loops: macros that iterate, and `cel.bind`.

Owns two forms of each loop: a literal one that follows the expansion step by step, so that its cost equals Kubernetes', and a
direct one for unmetered code. Both give the same values and errors.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from draco.cel.errors import EvaluationError
from draco.cel.evaluation.charges import Unmetered
from draco.cel.evaluation.code import UNSET, Code, Run, Scope, Slots, Step, Variable
from draco.cel.syntax.ast import Comprehension
from draco.cel.values.device import DeviceVariable
from draco.cel.values.values import MAPS, Value, go_type, value_of_key

if TYPE_CHECKING:
    from draco.cel.evaluation.compile import Compiler

_Body = Callable[[DeviceVariable, Slots, Iterator[None]], Value]
_DIRECT = frozenset({"all", "exists", "existsOne", "map", "filter", "transformList"})


def compile_loop(compiler: "Compiler", node: Comprehension, scope: Scope) -> Step:
    """Compile a macro that loops or binds a name."""
    if node.macro == "bind":
        return _bind(compiler, node, scope)
    if isinstance(compiler.meter, Unmetered) and node.macro in _DIRECT:
        return _direct(compiler, node, scope)
    return _literal(compiler, node, scope)


def _bind(compiler: "Compiler", node: Comprehension, scope: Scope) -> Step:
    """`cel.bind`: computed when first read. Never a constant: `false && s.matches(name)` does not compile the pattern."""
    init = yield compiler.step(node.init, scope)
    if isinstance(compiler.meter, Unmetered) and init.path is not None:
        return (yield compiler.step(node.body, {**scope, node.accumulator: Variable(0, init, is_alias=True)}))
    slot = compiler.new_slot()
    body = yield compiler.step(node.body, {**scope, node.accumulator: Variable(slot, init)})
    run = body.run

    def bound(device: DeviceVariable, slots: Slots) -> Value:
        slots[slot] = UNSET
        return run(device, slots)

    return Code(bound)


def _variables(compiler: "Compiler", node: Comprehension, scope: Scope) -> tuple[int, int | None, Scope]:
    first = compiler.new_slot()
    if node.second_variable is None:
        return first, None, {**scope, node.variable: Variable(first)}
    second = compiler.new_slot()
    return first, second, {**scope, node.variable: Variable(first), node.second_variable: Variable(second)}


def _elements(items: Value, first: int, second: int | None, slots: Slots) -> Iterator[None]:
    """Put each element of a list or map into the slots of the loop's variables."""
    kind = type(items)
    if second is None:
        if kind is list:
            for slots[first] in items:
                yield
        elif kind in MAPS:
            for key in list(items):
                slots[first] = value_of_key(key)
                yield
        else:
            raise EvaluationError(f"got '{go_type(items)}', expected iterable type")
        return
    if kind is list:
        for slots[first], slots[second] in enumerate(items):
            yield
    elif kind in MAPS:
        for key, slots[second] in list(items.items()):
            slots[first] = value_of_key(key)
            yield
    else:
        raise EvaluationError(f"unsupported comprehension range type: {go_type(items)}")


def _direct(compiler: "Compiler", node: Comprehension, scope: Scope) -> Step:
    source = yield compiler.step(node.range, scope)
    first, second, inner = _variables(compiler, node, scope)
    body = yield compiler.step(node.body, inner)
    keep = (yield compiler.step(node.filter, inner)) if node.filter is not None else None
    walk = source.run
    match node.macro:
        case "all":
            work = _quantifier(body.run, decisive=False)
        case "exists":
            work = _quantifier(body.run, decisive=True)
        case "existsOne":
            work = _exactly_one(body.run)
        case _:
            work = _collected(body.run, keep.run if keep else None)

    def run(device: DeviceVariable, slots: Slots) -> Value:
        return work(device, slots, _elements(walk(device, slots), first, second, slots))

    return Code(run)


def _quantifier(body: Run, *, decisive: bool) -> _Body:
    """`exists` (true decides) and `all` (false decides): the first error counts only if nothing decides."""

    def run(device: DeviceVariable, slots: Slots, elements: Iterator[None]) -> bool:
        failure: EvaluationError | None = None
        for _ in elements:
            try:
                value = body(device, slots)
            except EvaluationError as error:
                failure = failure or error
                continue
            if value is decisive:
                return bool(value)
            if type(value) is not bool:
                failure = failure or EvaluationError("no such overload")
        if failure is not None:
            raise failure
        return not decisive

    return run


def _exactly_one(body: Run) -> _Body:
    def run(device: DeviceVariable, slots: Slots, elements: Iterator[None]) -> bool:
        count = 0
        for _ in elements:
            value = body(device, slots)
            if type(value) is not bool:
                raise EvaluationError("no such overload")
            count += value
        return count == 1

    return run


def _collected(body: Run, keep: Run | None) -> _Body:
    def run(device: DeviceVariable, slots: Slots, elements: Iterator[None]) -> list[Value]:
        items = []
        for _ in elements:
            if keep is not None:
                kept = keep(device, slots)
                if kept is False:
                    continue
                if kept is not True:
                    raise EvaluationError("no such overload")
            items.append(body(device, slots))
        return items

    return run


def _literal(compiler: "Compiler", node: Comprehension, scope: Scope) -> Step:
    source = yield compiler.step(node.range, scope)
    init = yield compiler.step(node.init, scope)
    first, second, inner = _variables(compiler, node, scope)
    accumulator = compiler.new_slot()
    running = {node.accumulator: Variable(accumulator, fails=True)}
    condition = yield compiler.step(node.condition, {**inner, **running})
    step = yield compiler.step(node.step, {**inner, **running})
    result = yield compiler.step(node.result, {**scope, **running})
    walk, start, test, advance, finish = source.run, init.run, condition.run, step.run, result.run

    def run(device: DeviceVariable, slots: Slots) -> Value:
        items = walk(device, slots)
        value = start(device, slots)
        slots[accumulator] = value.copy() if type(value) in {dict, list} else value
        for _ in _elements(items, first, second, slots):
            if test(device, slots) is False:
                break
            try:
                slots[accumulator] = advance(device, slots)
            except EvaluationError as error:
                slots[accumulator] = error
        return finish(device, slots)

    return Code(run)
