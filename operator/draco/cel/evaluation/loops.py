"""Loops follow their macro's expansion step by step, so that their cost equals Kubernetes'; and `cel.bind`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from draco.cel.errors import EvaluationError
from draco.cel.evaluation.code import UNSET, Code, Scope, Slots, Step, Variable
from draco.cel.syntax.ast import Comprehension
from draco.cel.values.device import DeviceVariable
from draco.cel.values.values import MAPS, Value, go_type, value_of_key

if TYPE_CHECKING:
    from draco.cel.evaluation.compile import Compiler


def compile_loop(compiler: "Compiler", node: Comprehension, scope: Scope) -> Step:
    """Compile a macro that loops or binds a name."""
    return (_bind if node.macro == "bind" else _loop)(compiler, node, scope)


def _bind(compiler: "Compiler", node: Comprehension, scope: Scope) -> Step:
    """`cel.bind`: computed when first read. Never a constant: `false && s.matches(name)` does not compile the pattern."""
    init = yield compiler.step(node.init, scope)
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


def _loop(compiler: "Compiler", node: Comprehension, scope: Scope) -> Step:
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
