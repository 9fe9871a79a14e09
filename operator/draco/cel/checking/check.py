"""Type check: finds every error for which Kubernetes refuses an expression before it runs.

Owns names, fields, overload resolution and the result type, as in Kubernetes' checker, with its error texts; `validate` checks
literals beyond their type. The tree is never changed. Generators replace recursion: `yield` the check of a node to have it done.
"""

from collections import ChainMap
from typing import Final

import msgspec

from draco.cel.checking.environment import STORED_EXPRESSIONS, Environment
from draco.cel.errors import CompileError, Issue, refusal
from draco.cel.functions import table
from draco.cel.functions.overloads import Overload
from draco.cel.syntax.ast import Ast, Call, Comprehension, Expr, Identifier, ListExpr, Literal, MapExpr, Select, dotted
from draco.cel.syntax.steps import Steps, run
from draco.cel.values import types
from draco.cel.values.types import Bindings, Type

_LITERALS: Final = {"null_type": types.NULL, **{kind.name: kind for kind in types.PRIMITIVES}}
_TYPE_NAMES: Final = {
    **_LITERALS,
    "list": Type("list", "list", (types.DYN,)),
    "map": Type("map", "map", (types.DYN, types.DYN)),
    "type": types.TYPE,
    "duration": types.DURATION,
    "timestamp": types.TIMESTAMP,
    "google.protobuf.Duration": types.DURATION,
    "google.protobuf.Timestamp": types.TIMESTAMP,
    "optional_type": Type("opaque", "optional_type", (types.variable("V"),)),
    "net.IP": types.IP,
    "net.CIDR": types.CIDR,
    "kubernetes.DRADevice": types.DEVICE,
}
"""Types that an expression can name, as in `type(x) == string`."""
_RUNTIME_NAMES: Final = {
    "duration": "google.protobuf.Duration",
    "timestamp": "google.protobuf.Timestamp",
    "any": "google.protobuf.Any",
    "null": "null_type",
}


class CheckedExpression(msgspec.Struct, frozen=True, eq=False):
    """An expression that Kubernetes would accept, with what the checker found about its nodes.

    `functions` names the function of each call that looks like a method call but is none (`optional.of`); its target is not
    evaluated. `names` does the same for selections that spell a type's name. `locals` are the identifiers that name a macro's
    variable.
    """

    ast: Ast
    types: dict[Expr, Type]
    overloads: dict[Call, tuple[str, ...]]
    functions: dict[Call, str]
    names: dict[Select, str]
    locals: frozenset[Expr]

    @property
    def result(self) -> Type:
        """The type of the expression."""
        return self.types[self.ast.root]


def check(ast: Ast, environment: Environment = STORED_EXPRESSIONS) -> CheckedExpression:
    """Check an expression of any result type. Raises CompileError with every error found."""
    checker = _Checker(environment)
    try:
        run(checker.check(ast.root))
        found = {node: checker.bindings.final(of) for node, of in checker.types.items()}
    except (types.TooLarge, RecursionError):
        raise refusal(ast.expression, [Issue(None, str(types.TooLarge()))]) from None
    if checker.issues:
        raise refusal(ast.expression, checker.issues)
    names, local = checker.names, frozenset(checker.locals)
    return CheckedExpression(ast, found, checker.overloads, checker.functions, names, local)


def check_result(checked: CheckedExpression, environment: Environment = STORED_EXPRESSIONS) -> None:
    """Check that the result type suits a selector. Raises CompileError."""
    if checked.result not in {types.BOOL, environment.attribute}:
        raise CompileError(f"must evaluate to bool or the unknown type, not {runtime_name(checked.result)}")


def runtime_name(of: Type) -> str:
    """Return a type's runtime name, which differs from its name in the checker's errors."""
    name = _RUNTIME_NAMES.get(of.name, of.name)
    return f"{name}({', '.join(map(runtime_name, of.parameters))})" if of.parameters else name


class _Checker:
    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.bindings = Bindings()
        self.types: dict[Expr, Type] = {}
        self.overloads: dict[Call, tuple[str, ...]] = {}
        self.functions: dict[Call, str] = {}
        self.names: dict[Select, str] = {}
        self.locals: set[Expr] = set()
        self.issues: list[Issue] = []
        self._functions = table(environment.libraries)
        self._scope: ChainMap[str, Type] = ChainMap()
        self._variables = 0

    def check(self, node: Expr) -> Steps:
        match node:
            case Literal():
                self.types[node] = _LITERALS[node.kind]
            case Identifier():
                self._check_identifier(node)
            case Select():
                yield from self._check_select(node)
            case Call():
                yield from self._check_call(node)
            case ListExpr():
                yield from self._check_list(node)
            case MapExpr():
                yield from self._check_map(node)
            case Comprehension():
                yield from self._check_comprehension(node)

    def _report(self, position: int, message: str) -> None:
        self.issues.append(Issue(position, message))

    def _undeclared(self, node: Expr, name: str) -> None:
        self.types[node] = types.ERROR
        self._report(node.position, f"undeclared reference to '{name}' (in container '')")

    def _variable(self) -> Type:
        self._variables += 1
        return types.variable(f"_var{self._variables - 1}")

    def _global(self, name: str) -> Type | None:
        name = name.removeprefix(".")
        if (of := self.environment.variable(name)) is not None:
            return of
        named = _TYPE_NAMES.get(name)
        return None if named is None else types.type_of(named)

    def _check_identifier(self, node: Identifier) -> None:
        found = self._scope.get(node.name)
        if found is not None:
            self.locals.add(node)
        else:
            found = self._global(node.name)
        if found is None:
            self._undeclared(node, node.name)
        else:
            self.types[node] = found

    def _check_select(self, node: Select) -> Steps:
        name = dotted(node)
        if name is not None and name.partition(".")[0] not in self._scope and (found := self._global(name)) is not None:
            self.types[node] = found
            self.names[node] = name.removeprefix(".")
            return
        yield self.check(node.operand)
        result = self._field(node, node.operand, node.field)
        self.types[node] = types.BOOL if node.is_test else self.bindings.resolved(result)

    def _field(self, node: Expr, operand: Expr, field: str, *, is_optional: bool = False) -> Type:
        of, was_optional = types.unwrapped(self.bindings.resolved(self.types[operand]))
        result = types.ERROR
        if of.kind == "map":
            result = of.parameters[1]
        elif of.kind == "object":
            fields = self.environment.fields(of)
            declared = fields.get(field) if fields is not None else None
            if declared is None:
                # Kubernetes declares fields of the device only; the checker cannot look into its other types.
                closed = f"unexpected failed resolution of '{of}'"
                self._report(node.position, closed if fields is None else f"undefined field '{field}'")
            else:
                result = declared
        else:
            if of.kind == "variable":
                self.bindings.fits(types.DYN, of)
            elif not of.is_dyn and of.kind != "error":
                self._report(node.position, f"type '{of}' does not support field selection")
            result = types.DYN
        return types.optional_of(result) if was_optional or is_optional else result

    def _check_call(self, node: Call) -> Steps:
        if node.function == "_?._":
            operand, field = node.arguments
            yield self.check(operand)
            name = str(field.value) if isinstance(field, Literal) else ""
            self.types[field] = types.STRING
            self.types[node] = self.bindings.resolved(self._field(node, operand, name, is_optional=True))
            self.overloads[node] = ("select_optional_field",)
            return
        for argument in node.arguments:
            yield self.check(argument)
        function, target = node.function.removeprefix("."), node.target
        if target is not None:
            prefix = dotted(target)
            full = f"{prefix}.{function}".removeprefix(".") if prefix is not None else ""
            if full in self._functions:
                self.functions[node] = full
                self._resolve(node, full, None)
                return
            yield self.check(target)
        if function in self._functions:
            self._resolve(node, function, target)
        else:
            self._undeclared(node, node.function)

    def _resolve(self, node: Call, function: str, target: Expr | None) -> None:
        """Find the fitting overloads; the result is dyn if they differ in it."""
        nodes = node.arguments if target is None else (target, *node.arguments)
        given = [self.types[argument] for argument in nodes]
        if function in {"_&&_", "_||_"}:
            self._resolve_logical(node, nodes, given)
            return
        result: Type | None = None
        fitting: list[str] = []
        for overload in self._functions[function]:
            if overload.is_member != (target is not None):
                continue
            parameters, gives = self._instance(overload)
            if not self.bindings.all_fit(given, parameters):
                continue
            fitting.append(overload.id)
            gives = self.bindings.resolved(gives)
            if result is None:
                result = gives
            elif not result.is_dyn and gives != result:
                result = types.DYN
        if result is None:
            shown = [str(self.bindings.final(of)) for of in given]
            applied = f"{shown[0]}.({', '.join(shown[1:])})" if target is not None else f"({', '.join(shown)})"
            self._report(node.position, f"found no matching overload for '{function}' applied to '{applied}'")
            result = types.ERROR
        else:
            self.overloads[node] = tuple(fitting)
        self.types[node] = result

    def _resolve_logical(self, node: Call, nodes: tuple[Expr, ...], given: list[Type]) -> None:
        wrong = [(part, of) for part, of in zip(nodes, given, strict=True) if not self.bindings.fits(of, types.BOOL)]
        for part, of in wrong:
            self._report(part.position, f"expected type 'bool' but found '{of}'")
        self.types[node] = types.ERROR if wrong else types.BOOL
        self.overloads[node] = ("logical_and" if node.function == "_&&_" else "logical_or",)

    def _instance(self, overload: Overload) -> tuple[tuple[Type, ...], Type]:
        if not overload.variables:
            return overload.parameters, overload.result
        fresh = {name: self._variable() for name in overload.variables}
        return tuple(_replaced(of, fresh) for of in overload.parameters), _replaced(overload.result, fresh)

    def _check_list(self, node: ListExpr) -> Steps:
        joined: Type | None = None
        for index, element in enumerate(node.elements):
            yield self.check(element)
            of = self._element(element, is_optional=index in node.optional)
            joined = self._joined(joined, of)
        self.types[node] = types.list_of(joined or self._variable())

    def _check_map(self, node: MapExpr) -> Steps:
        key: Type | None = None
        value: Type | None = None
        for entry in node.entries:
            yield self.check(entry.key)
            key = self._joined(key, self.types[entry.key])
            yield self.check(entry.value)
            value = self._joined(value, self._element(entry.value, is_optional=entry.is_optional))
        self.types[node] = types.map_of(key or self._variable(), value or self._variable())

    def _element(self, node: Expr, *, is_optional: bool) -> Type:
        """The type that an element adds to its list or map: for an element written with `?`, the type inside the optional."""
        of = self.types[node]
        if not is_optional:
            return of
        held, was_optional = types.unwrapped(of)
        if not was_optional and not held.is_dyn:
            self._report(node.position, f"expected type '{types.optional_of(held)}' but found '{held}'")
        return held

    def _joined(self, before: Type | None, of: Type) -> Type:
        if before is None:
            return of
        if self.bindings.fits(before, of):
            return types.more_general(before, of)
        return types.DYN  # `validate` reports it later, as in Kubernetes

    def _check_comprehension(self, node: Comprehension) -> Steps:
        yield self.check(node.range)
        yield self.check(node.init)
        of = self.bindings.resolved(self.types[node.range])
        running = self.types[node.init]
        first, second = self._iterated(node, of)
        self._scope = self._scope.new_child({node.accumulator: running})
        inner = {node.variable: first}
        if node.second_variable is not None:
            inner[node.second_variable] = second
        self._scope = self._scope.new_child(inner)
        yield self.check(node.condition)
        self._assert(node.condition, types.BOOL)
        yield self.check(node.step)
        self._assert(node.step, running)
        self._scope = self._scope.parents
        yield self.check(node.result)
        self._scope = self._scope.parents
        self.types[node] = self.bindings.resolved(self.types[node.result])

    def _iterated(self, node: Comprehension, of: Type) -> tuple[Type, Type]:
        if of.kind == "list":
            (element,) = of.parameters
            return (types.INT, element) if node.second_variable is not None else (element, element)
        if of.kind == "map":
            key, value = of.parameters
            return key, value
        if of.kind in {"dyn", "error", "variable"}:
            self.bindings.fits(types.DYN, of)
            return types.DYN, types.DYN
        complaint = "cannot be range of a comprehension (must be list, map, or dynamic)"
        self._report(node.range.position, f"expression of type '{of}' {complaint}")
        return types.ERROR, types.ERROR

    def _assert(self, node: Expr, wanted: Type) -> None:
        if not self.bindings.fits(wanted, self.types[node]):
            self._report(node.position, f"expected type '{wanted}' but found '{self.types[node]}'")


def _replaced(of: Type, fresh: dict[str, Type]) -> Type:
    if of.kind == "variable":
        return fresh[of.name]
    if not of.parameters:
        return of
    return Type(of.kind, of.name, tuple(_replaced(part, fresh) for part in of.parameters), of.depth, of.size)
