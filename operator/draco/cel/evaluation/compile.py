"""Compiles the tree of an expression to one closure per node.

Owns what each kind of node does: laziness, error absorption, reads of the device, variables. `calls` compiles function calls,
`loops` loops; `charges` adds the cost. Generators replace recursion, so a deep tree never overflows Python's stack.
"""

from collections.abc import Mapping
from typing import Final

from draco.cel.errors import CompileError, EvaluationError
from draco.cel.evaluation.calls import compile_call
from draco.cel.evaluation.charges import READ, call, charged, optional_part, part
from draco.cel.evaluation.code import UNSET, Code, Run, Scope, Slots, Step, Variable, constant
from draco.cel.evaluation.logic import both, either, not_strictly_false, or_optional, or_value
from draco.cel.evaluation.loops import compile_loop
from draco.cel.evaluation.reads import DEVICE_READS, KEYS, taken, taken_optionally, with_checked_key
from draco.cel.functions.costs import NEW_LIST, NEW_MAP
from draco.cel.functions.operators import look_up
from draco.cel.functions.overloads import Binding
from draco.cel.syntax.ast import Call, Comprehension, Expr, Identifier, ListExpr, Literal, MapExpr, Select
from draco.cel.syntax.steps import run
from draco.cel.values.device import DeviceVariable
from draco.cel.values.texts import shown
from draco.cel.values.values import NONE, Key, Optional, TypeValue, UInt, Value, go_type, key_of

_TYPES: Final = frozenset(
    {"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint", "optional_type"}
)


class Compiler:
    """Compiles one expression.

    `overloads` has the ids of the overloads that the checker left for a call. If it is only one, the call runs that one and
    refuses values of other types, as in Kubernetes: the sum of an empty list then has the type of its elements. `functions` and
    `names` are the checker's, too: calls of a function with a dot in its name, and selections that spell a type.
    """

    def __init__(
        self, overloads: Mapping[Call, tuple[str, ...]], functions: Mapping[Call, str], names: Mapping[Select, str]
    ) -> None:
        self.slots = 2
        self._overloads = overloads
        self._functions = functions
        self._names = names

    def compile(self, root: Expr) -> Run:
        """Compile a whole expression. Raises CompileError if a constant part has no value."""
        code: Code = run(self.step(root, {}))
        return code.run

    def new_slot(self) -> int:
        """Reserve the number of a new variable."""
        self.slots += 1
        return self.slots - 1

    def step(self, node: Expr, scope: Scope) -> Step:  # noqa: PLR0911 - one per kind of node
        """Begin to compile a node; `scope` has the variables it can use."""
        match node:
            case Literal():
                return self._literal(node)
            case Identifier():
                return self._identifier(node, scope)
            case Select():
                return self._select(node, scope)
            case Call():
                return self._call(node, scope)
            case ListExpr():
                return self._list(node, scope)
            case MapExpr():
                return self._map(node, scope)
            case Comprehension():
                return compile_loop(self, node, scope)

    def _literal(self, node: Literal) -> Step:
        value = node.value
        return constant(UInt(value) if node.kind == "uint" and isinstance(value, int) else value)
        yield

    def _identifier(self, node: Identifier, scope: Scope) -> Step:
        variable = scope.get(node.name)
        if variable is not None:
            return self._read(_variable(variable))
        name = node.name.removeprefix(".")
        if name == "device":
            return self._read(Code(lambda device, _slots: device.as_map(), path=()))
        if name in _TYPES:
            return constant(TypeValue(name))
        raise CompileError(f"compilation failed: undeclared reference to '{name}'")
        yield

    def _read(self, bare: Code) -> Code:
        return bare._replace(run=charged(bare.run, READ), bare=bare.run)

    def _select(self, node: Select, scope: Scope) -> Step:
        if node in self._names:
            return constant(TypeValue(self._names[node]))
        operand = yield self.step(node.operand, scope)
        if node.is_test:
            return self._test(operand, node.field)
        return self._part(operand, constant(node.field), is_optional=False)

    def _test(self, operand: Code, field: str) -> Code:
        """`has(operand.field)`."""
        run = operand.bare or operand.run
        path = operand.path
        if path is not None and len(path) == 2 and path[0] in {"attributes", "capacity"}:
            kind, domain = path
            if kind == "attributes":
                return Code(charged(lambda device, _slots: field in device.attributes[domain], len(path) + 1))
            return Code(charged(lambda device, _slots: field in device.capacity[domain], len(path) + 1))

        def present(value: Value, at: Value) -> Value:
            if type(value) is Optional:
                return look_up(value.value, at)[0] or NONE
            return look_up(value, at)[0]

        test = part(run, constant(field), present)

        def is_present(device: DeviceVariable, slots: Slots) -> Value:
            found = test(device, slots)
            return False if found is NONE else found

        return Code(is_present)

    def _part(self, operand: Code, key: Code, *, is_optional: bool) -> Code:
        """`operand[key]`, `operand.key` and their optional forms."""
        path = operand.path
        if path is not None and key.is_constant and type(key.value) is str and len(path) < 3 and not is_optional:
            return self._device_part((*path, key.value))
        if key.is_constant and type(key.value) not in KEYS:
            raise CompileError(f"program instantiation failed: invalid qualifier type: {go_type(key.value)}")
        read, take = (optional_part, taken_optionally) if is_optional else (part, taken)
        bare = read(operand.bare or operand.run, key, take if key.is_constant else with_checked_key(take))
        return Code(charged(bare, READ), bare=bare)

    def _device_part(self, path: tuple[str, ...]) -> Code:
        read = DEVICE_READS[len(path)](*path)
        return Code(charged(read, len(path) + READ), path=path, bare=charged(read, len(path)))

    def _list(self, node: ListExpr, scope: Scope) -> Step:
        codes = []
        for element in node.elements:
            codes.append((yield self.step(element, scope)))  # noqa: PERF401 - a generator cannot yield from a comprehension
        if not node.optional and all(code.is_constant for code in codes):
            return constant([code.value for code in codes])
        runs = tuple((code.run, position in node.optional) for position, code in enumerate(codes))

        def build(device: DeviceVariable, slots: Slots) -> Value:
            items = []
            for element_run, is_optional in runs:
                value = element_run(device, slots)
                if is_optional:
                    if type(value) is not Optional:
                        text = f"cannot initialize optional list element from non-optional value {shown(value)}"
                        raise EvaluationError(text)
                    if not value.present:
                        continue
                    value = value.value
                items.append(value)
            return items

        return Code(charged(build, NEW_LIST))

    def _map(self, node: MapExpr, scope: Scope) -> Step:
        parts = []
        for entry in node.entries:
            key = yield self.step(entry.key, scope)
            value = yield self.step(entry.value, scope)
            parts.append((key, value, entry.is_optional))
        if all(key.is_constant and value.is_constant and not is_optional for key, value, is_optional in parts):
            return constant({key_of(key.value): value.value for key, value, _ in parts})
        runs = tuple((key.run, value.run, is_optional) for key, value, is_optional in parts)

        def build(device: DeviceVariable, slots: Slots) -> Value:
            entries: dict[str | Key, Value] = {}
            for key_run, value_run, is_optional in runs:
                key = key_run(device, slots)
                value = value_run(device, slots)
                if is_optional:
                    if type(value) is not Optional:
                        text = f"cannot initialize optional entry '{shown(key)}' from non-optional value {shown(value)}"
                        raise EvaluationError(text)
                    if not value.present:
                        entries.pop(key_of(key), None)
                        continue
                    value = value.value
                entries[key_of(key)] = value
            return entries

        return Code(charged(build, NEW_MAP))

    def _call(self, node: Call, scope: Scope) -> Step:  # noqa: PLR0911 - one per form that is no function
        name = self._functions.get(node, node.function.removeprefix("."))
        operands = node.arguments if node in self._functions or node.target is None else (node.target, *node.arguments)
        codes = []
        for operand in operands:
            codes.append((yield self.step(operand, scope)))  # noqa: PERF401 - as above
        match name:
            case "_&&_":
                return Code(both(codes[0].run, codes[1].run))
            case "_||_":
                return Code(either(codes[0].run, codes[1].run))
            case "_?_:_":
                return self._conditional(*codes)
            case "_[_]":
                return self._part(codes[0], codes[1], is_optional=False)
            case "_[?_]" | "_?._":
                return self._part(codes[0], codes[1], is_optional=True)
            case "@not_strictly_false":
                return Code(charged(not_strictly_false(codes[0].run), 1))
            case "or" if len(codes) == 2:
                return Code(or_optional(codes[0].run, codes[1].run))
            case "orValue" if len(codes) == 2:
                return Code(or_value(codes[0].run, codes[1].run))
        return self._function(node, name, codes, scope)

    def _conditional(self, test: Code, then: Code, otherwise: Code) -> Code:
        condition, first, second = test.run, then.bare or then.run, otherwise.bare or otherwise.run

        def choose(device: DeviceVariable, slots: Slots) -> Value:
            holds = condition(device, slots)
            if holds is True:
                return first(device, slots)
            if holds is False:
                return second(device, slots)
            raise EvaluationError("no such overload")

        return Code(choose, bare=choose)

    def _function(self, node: Call, name: str, codes: list[Code], scope: Scope) -> Code:
        if name == "_+_" and _is_appending(node, scope):
            return Code(call(Binding(_append), tuple(code.run for code in codes)))
        possible = self._overloads.get(node, ())
        return compile_call(name, possible[0] if len(possible) == 1 else None, codes)


def _variable(variable: Variable) -> Code:
    slot, init, fails = variable
    if init is not None:
        compute = init.run

        def lazy(_device: DeviceVariable, slots: Slots) -> Value:
            value = slots[slot]
            if value is UNSET:
                try:
                    value = slots[slot] = compute(_device, slots)
                except EvaluationError as error:
                    slots[slot] = error
                    raise
            if isinstance(value, EvaluationError):
                raise value.with_traceback(None)
            return value

        return Code(lazy)
    if not fails:
        return Code(lambda _device, slots: slots[slot])

    def running(_device: DeviceVariable, slots: Slots) -> Value:
        value = slots[slot]
        if isinstance(value, EvaluationError):
            raise value.with_traceback(None)  # else the traceback would grow with each iteration
        return value

    return Code(running)


def _is_appending(node: Call, scope: Scope) -> bool:
    """Whether a loop appends to the list it builds. Nothing else sees that list, so it may be changed in place."""
    one, other = node.arguments
    return isinstance(one, Identifier) and isinstance(other, ListExpr) and one.name in scope and scope[one.name].fails


def _append(items: Value, more: Value) -> Value:
    items.extend(more)
    return items
