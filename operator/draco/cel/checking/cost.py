"""Estimated cost: the highest cost of one evaluation on any device the API allows.

Owns Kubernetes' cost model for expressions that have not run: the cost of each kind of node, how sizes of texts, lists and maps
propagate, and the declared maxima of a device. The table of functions has the costs of functions. Evaluates nothing. Numbers are
unsigned 64-bit and saturate at the maximum, which means "no bound".

Also decides whether an expression may run without counting its cost. The decision uses the text alone and counts when in doubt:
an expression that is not counted is short, has no nested loops, and builds nothing much larger than its text.
"""

from functools import cache
from typing import Final, NamedTuple

from draco.cel.checking.check import CheckedExpression
from draco.cel.checking.environment import STORED_EXPRESSIONS, Environment
from draco.cel.functions import by_id
from draco.cel.functions.costs import NEW_LIST, NEW_MAP
from draco.cel.functions.estimates import (
    NOTHING,
    ONE,
    UNBOUNDED,
    UNKNOWN,
    Argument,
    FieldPath,
    Range,
    fixed,
    from_variable,
    nowhere,
)
from draco.cel.syntax.ast import (
    Ast,
    Call,
    Comprehension,
    Expr,
    Identifier,
    ListExpr,
    Literal,
    MapExpr,
    Select,
    children,
)
from draco.cel.syntax.steps import Steps, run
from draco.cel.values.types import unwrapped

_LIST: Final = fixed(NEW_LIST)
_MAP: Final = fixed(NEW_MAP)
_SCALARS: Final = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})


class _Entries(NamedTuple):
    is_list: bool
    key: Range
    value: Range


class _Variable(NamedTuple):
    path: FieldPath
    size: Range | None
    entries: _Entries | None


def estimated_cost(checked: CheckedExpression, environment: Environment = STORED_EXPRESSIONS) -> int | None:
    """Return the highest cost of evaluating a checked expression, or None if it has no bound."""
    estimate = _Estimate(checked, environment)
    run(estimate.visit(checked.ast.root))
    most = estimate.costs[checked.ast.root].most
    return None if most >= UNBOUNDED else most


class _Estimate:
    def __init__(self, checked: CheckedExpression, environment: Environment) -> None:
        self.costs: dict[Expr, Range] = {}
        self._checked = checked
        self._environment = environment
        self._paths: dict[Expr, FieldPath] = {}
        self._sizes: dict[Expr, Range] = {}
        self._entries: dict[Expr, _Entries] = {}
        self._variables: dict[str, list[_Variable]] = {}

    def visit(self, node: Expr) -> Steps:
        match node:
            case Literal():
                self.costs[node] = NOTHING
            case Identifier():
                variable = self._variable(node)
                self._paths[node] = from_variable(node.name) if variable is None else variable.path
                self.costs[node] = ONE
            case Select():
                yield from self._visit_select(node)
            case Call():
                yield from self._visit_call(node)
            case ListExpr():
                yield from self._visit_list(node)
            case MapExpr():
                yield from self._visit_map(node)
            case Comprehension():
                yield from self._visit_comprehension(node)

    def _variable(self, node: Expr) -> _Variable | None:
        if isinstance(node, Identifier) and (stack := self._variables.get(node.name)):
            return stack[-1]
        return None

    def _path(self, node: Expr) -> FieldPath:
        variable = self._variable(node)
        if variable is not None:
            return variable.path
        return self._paths.get(node) or nowhere()

    def _visit_select(self, node: Select) -> Steps:
        if (name := self._checked.names.get(node)) is not None:
            self._paths[node] = from_variable(name)
            self.costs[node] = ONE
            return
        yield self.visit(node.operand)
        cost = self.costs[node.operand]
        if not node.is_test:
            if self._checked.types[node.operand].kind in {"map", "object"}:
                cost += ONE
            self._paths[node] = self._path(node.operand).to(node.field)
        self.costs[node] = cost

    def _visit_list(self, node: ListExpr) -> Steps:
        total, inside = _LIST, _NONE if node.elements else NOTHING
        for element in node.elements:
            yield self.visit(element)
            total += self.costs[element]
            inside = inside.union(self._size_or_unknown(element))
        self._entries[node] = _Entries(is_list=True, key=ONE, value=inside)
        self.costs[node] = total

    def _visit_map(self, node: MapExpr) -> Steps:
        total = _MAP
        keys = values = _NONE if node.entries else NOTHING
        for entry in node.entries:
            yield self.visit(entry.key)
            yield self.visit(entry.value)
            total += self.costs[entry.key] + self.costs[entry.value]
            keys = keys.union(self._size_or_unknown(entry.key))
            values = values.union(self._size_or_unknown(entry.value))
        self._entries[node] = _Entries(is_list=False, key=keys, value=values)
        self.costs[node] = total

    def _visit_comprehension(self, node: Comprehension) -> Steps:
        yield self.visit(node.range)
        yield self.visit(node.init)
        running = _Variable(self._path(node.init), self._size(node.init), self._entry_sizes(node.init))
        self._variables.setdefault(node.accumulator, []).append(running)
        names = [node.variable] if node.second_variable is None else [node.variable, node.second_variable]
        for name, variable in zip(names, self._loop_variables(node), strict=False):
            self._variables.setdefault(name, []).append(variable)
        yield self.visit(node.condition)
        yield self.visit(node.step)
        for name in names:
            self._variables[name].pop()
        yield self.visit(node.result)
        times = self._size_or_unknown(node.range)
        total = self.costs[node.range] + self.costs[node.init] + self.costs[node.result]
        self.costs[node] = total + times * (self.costs[node.step] + self.costs[node.condition])
        if node.macro == "bind":
            self._copy_sizes(node, node.result)
        elif isinstance(node.init, Literal):
            self._set_size(node, self._size(node.init))
        elif isinstance(node.init, ListExpr | MapExpr):
            self._sizes[node] = times
            self._set_entries(node, self._entry_sizes(node.step))
        self._variables[node.accumulator].pop()

    def _loop_variables(self, node: Comprehension) -> list[_Variable]:
        """The loop's variables: elements of a list or keys of a map; with two variables, index or key, and value."""
        inside, path = self._entry_sizes(node.range), self._path(node.range)
        is_list = inside.is_list if inside is not None else self._checked.types[node.range].kind == "list"
        key = None if inside is None else inside.key
        value = None if inside is None else inside.value
        of_keys = [] if is_list and node.second_variable is None else ["@indices" if is_list else "@keys"]
        of_values = [] if not is_list and node.second_variable is None else ["@items" if is_list else "@values"]
        keys = [_Variable(path.to(step), key, None) for step in of_keys]
        return keys + [_Variable(path.to(step), value, None) for step in of_values]

    def _visit_call(self, node: Call) -> Steps:
        for argument in node.arguments:
            yield self.visit(argument)
        if node.function == "dyn":
            (argument,) = node.arguments
            self.costs[node] = self.costs[argument] + ONE
            self._copy_sizes(node, argument)
            return
        target = None if node in self._checked.functions else node.target
        total = NOTHING
        if target is not None:
            yield self.visit(target)
            total = self.costs[target]
        cost, size = _NONE, None
        for overload in self._checked.overloads.get(node, ()):
            of_overload, gives = self._call(node, overload, target)
            cost = cost.union(of_overload)
            size = gives if size is None else size if gives is None else size.union(gives)
            if overload in {"index_list", "index_map"}:
                entries = self._entry_sizes(node.arguments[0])
                size = None if entries is None else entries.value
                step = "@items" if overload == "index_list" else "@values"
                self._paths[node] = self._path(node.arguments[0]).to(step)
            if size is None:
                size = self._size(node)
        self._set_size(node, size)
        self.costs[node] = total + cost

    def _call(self, node: Call, overload: str, target: Expr | None) -> tuple[Range, Range | None]:
        """Cost and size of the result of one overload. The cost includes that of the arguments, but not that of the target."""
        arguments = node.arguments
        costs = [self.costs[argument] for argument in arguments]
        spent = NOTHING
        for cost in costs:
            spent += cost
        given = [self._argument(operand) for operand in (arguments if target is None else (target, *arguments))]
        if overload in {"logical_and", "logical_or"}:
            return Range(costs[0].least, (costs[0] + costs[1]).most), None
        if overload == "conditional":
            _, then, otherwise = arguments
            self._set_entries(node, _union(self._entry_sizes(then), self._entry_sizes(otherwise)))
            return costs[0] + costs[1].union(costs[2]), given[1].size.union(given[2].size)
        if node.function == "_+_":
            self._set_entries(node, _union(*map(self._entry_sizes, arguments)))
        estimator = by_id()[overload].row.cost.estimate
        if estimator is None:
            return ONE + spent, None
        estimate = estimator(given)
        return estimate.cost + spent, estimate.size

    def _argument(self, node: Expr) -> Argument:
        path = self._path(node).names
        if path[:1] in {("@result",), ("__result__",)}:
            path = ()
        return Argument(node, self._checked.types[node], path, self._size(node), self._declared)

    def _size_or_unknown(self, node: Expr) -> Range:
        return self._size(node) or UNKNOWN

    def _set_size(self, node: Expr, size: Range | None) -> None:
        if size is not None:
            self._sizes[node] = size

    def _set_entries(self, node: Expr, entries: _Entries | None) -> None:
        if entries is not None:
            self._entries[node] = entries

    def _copy_sizes(self, node: Expr, source: Expr) -> None:
        self._set_size(node, self._size(source))
        self._set_entries(node, self._entry_sizes(source))

    def _size(self, node: Expr) -> Range | None:
        known = self._sizes.get(node) or _written_size(node)
        if known is not None:
            return known
        declared = self._declared(self._path(node).names)
        if declared is not None:
            self._sizes[node] = declared
            return declared
        if unwrapped(self._checked.types[node])[0].name in _SCALARS:
            return ONE
        variable = self._variable(node)
        return None if variable is None else variable.size

    def _entry_sizes(self, node: Expr) -> _Entries | None:
        if node in self._entries:
            return self._entries[node]
        variable = self._variable(node)
        return None if variable is None else variable.entries

    def _declared(self, path: tuple[str, ...]) -> Range | None:  # noqa: PLR0911 - a table
        """The declared size of what a path leads to: characters of a text, elements of a list or map."""
        match path:
            case ("device",):
                return NOTHING
            case ("device", "driver"):
                return Range(0, 63)
            case ("device", "allowMultipleAllocations") if self._environment.has_allow_multiple_allocations:
                return Range(0, 1)
            case ("device", "attributes" | "capacity"):
                return Range(0, 32)
            case ("device", "attributes" | "capacity", "@keys"):
                return Range(0, 63)
            case ("device", "attributes" | "capacity", "@values" | "@items"):
                return Range(0, 32)
            case ("device", "attributes" | "capacity", "@values" | "@items", "@keys"):
                return Range(0, 32)
            case ("device", "attributes", "@values" | "@items", _):
                return Range(0, 64)
            case ("device", "capacity", "@values" | "@items", "@values" | "@items"):
                return NOTHING
        return None


_NONE: Final = Range(UNBOUNDED, 0)
"""The identity of `union`."""


def _union(one: _Entries | None, other: _Entries | None) -> _Entries | None:
    if one is None or other is None:
        return None
    return _Entries(one.is_list, one.key.union(other.key), one.value.union(other.value))


def _written_size(node: Expr) -> Range | None:
    match node:
        case Literal(value=str(text)):
            return fixed(len(text))
        case Literal(value=bytes(data)):
            return fixed(len(data))
        case Literal():
            return ONE
        case ListExpr():
            return fixed(len(node.elements))
        case MapExpr():
            return fixed(len(node.entries))
    return None


_LONGEST: Final = 1000
"""Characters. A loop over part of such a text with the rest as its body costs Kubernetes less than half of the limit."""
_PLAIN_LOOPS: Final = frozenset({"all", "exists", "existsOne", "map", "filter", "transformList"})


@cache
def _multiplying() -> frozenset[tuple[str, int]]:
    """Functions whose result or cost can be many times their arguments: last part of the name, number of arguments."""
    found = [overload for overload in by_id().values() if overload.row.cost.multiplies]
    return frozenset((each.function.rpartition(".")[2], len(each.parameters) - each.is_member) for each in found)


def is_surely_cheap(ast: Ast) -> bool:
    """Whether no device can make the evaluation reach the cost limit.

    The API allows texts up to 64 characters, lists up to 48 elements, 32 attributes and capacities.
    """
    if len(ast.expression) > _LONGEST:
        return False
    repeats = has_sums = False
    waiting: list[tuple[Expr, bool]] = [(ast.root, False)]
    while waiting:
        node, is_repeated = waiting.pop()
        if isinstance(node, Comprehension):
            repeats = True
            if node.macro == "bind":
                waiting += [(node.init, is_repeated), (node.body, is_repeated)]
                continue
            if is_repeated or node.macro not in _PLAIN_LOOPS:
                return False
            waiting += [(node.range, False), (node.body, True)]
            if node.filter is not None:
                waiting.append((node.filter, True))
            continue
        if isinstance(node, Call):
            if (node.function, len(node.arguments)) in _multiplying():
                return False
            has_sums = has_sums or node.function == "_+_"
        waiting += [(child, is_repeated) for child in children(node)]
    return not (repeats and has_sums)  # a sum inside a loop can double on each iteration
