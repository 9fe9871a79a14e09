"""Draco's and Kubernetes' answers to one selector on one device, in a comparable form.

Owns which words may differ. A case is `{"expression": …, "device": …}`, and may name the environment it is compiled in as the
oracle does: `{"environment": "new", "gates": {"noConsumableCapacity": …, "listTypeAttributes": …}}`.
"""

from typing import Any

import msgspec

from draco.cel import (
    STORED_EXPRESSIONS,
    CompileError,
    Environment,
    EvaluationError,
    compile_selector,
    device_view,
    new_expressions,
)
from draco.cel.checking.check import check
from draco.cel.syntax.ast import Comprehension, walk
from draco.cel.syntax.parse import parse
from draco.resources.api.slices import Device
from tests.oracle.programs import Oracle

Json = dict[str, Any]
BREAKDOWN = "internal error: interface conversion"
"""Go's evaluator panics over some errors, such as that of a list to be sorted; there is then no answer to compare."""


ENVIRONMENTS: list[Json] = [
    {},
    {"environment": "new"},
    {"environment": "new", "gates": {"noConsumableCapacity": True}},
    {"environment": "new", "gates": {"listTypeAttributes": True}},
    {"environment": "new", "gates": {"noConsumableCapacity": True, "listTypeAttributes": True}},
]
"""The environments in which a case may be asked."""
KINDS = ("match", "compileError", "error", "cost", "estimatedCost")
MINOR = 37
"""The oracle's version of Kubernetes."""


def environment_of(case: Json) -> Environment:
    """The environment that a case names."""
    if case.get("environment") != "new":
        return STORED_EXPRESSIONS
    gates = case.get("gates", {})
    environment = new_expressions(MINOR, list_attributes=gates.get("listTypeAttributes", False))
    if gates.get("noConsumableCapacity"):
        return msgspec.structs.replace(environment, has_allow_multiple_allocations=False)
    return environment


def draco_says(case: Json) -> Json:
    """Draco's answer: a match with its cost, a compile error or an error."""
    try:
        selector = compile_selector(case["expression"], environment=environment_of(case))
    except CompileError as error:
        return {"compileError": same_words(str(error))}
    device = case["device"]
    view = device_view(device["driver"], msgspec.convert({"name": "device", **device}, Device))
    try:
        answer: Json = {"match": selector.matches(view), "cost": selector.cost(view)}
    except EvaluationError as error:
        answer = {"error": str(error)}
    if selector.estimated_cost is not None:
        answer["estimatedCost"] = selector.estimated_cost
    return answer


def kubernetes_says(go: Oracle, *cases: Json) -> list[Json]:
    """Kubernetes' answers, in the order of the cases."""
    return [comparable(answer) for answer in go.ask(*cases)]


def comparable(answer: Json) -> Json:
    """The oracle's answer to a selector on a device, without what Draco does not report."""
    kept = {kind: answer[kind] for kind in KINDS if kind in answer}
    if "compileError" in kept:
        kept["compileError"] = same_words(kept["compileError"])
    if "match" not in kept:
        kept.pop("cost", None)
    return kept


def without_luck(case: Json, answer: Json) -> Json:
    """An answer without what Go randomises: the cost of a loop over a map, which depends on where it ends early."""
    if "cost" not in answer or not is_parsed(case):
        return answer
    checked = check(parse(case["expression"]), environment_of(case))
    loops = [node for node in walk(checked.ast.root) if isinstance(node, Comprehension) and node.macro != "bind"]
    if all(checked.types[loop.range].kind == "list" for loop in loops):
        return answer
    return {kind: said for kind, said in answer.items() if kind != "cost"}


def is_parsed(case: Json) -> bool:
    """Whether Draco can parse and check the expression."""
    try:
        check(parse(case["expression"]), environment_of(case))
    except CompileError:
        return False
    return True


def same_words(compile_error: str) -> str:
    """A compile error without the details of a syntax error: what the parser expected instead depends on the parser."""
    return "a syntax error" if "Syntax error:" in compile_error else compile_error
