"""What Draco and Kubernetes answer to one selector on one device, in a form that can be compared.

Owns which words may differ. A case is `{"expression": …, "device": …}`.
"""

from typing import Any

import msgspec

from draco.cel import CompileError, EvaluationError, compile_selector, device_view
from draco.resources.slices import Device
from tests.oracle.programs import Oracle

Json = dict[str, Any]
BREAKDOWN = "internal error: interface conversion"
"""Go's evaluator panics over some errors, such as that of a list to be sorted, and then has no answer to compare with."""


def draco_says(case: Json) -> Json:
    """Our answer: a match, a compile error or an error."""
    try:
        selector = compile_selector(case["expression"])
    except CompileError as error:
        return {"compileError": same_words(str(error))}
    device = case["device"]
    view = device_view(device["driver"], msgspec.convert({"name": "device", **device}, Device))
    try:
        return {"match": selector.matches(view)}
    except EvaluationError as error:
        return {"error": str(error)}


def kubernetes_says(go: Oracle, *cases: Json) -> list[Json]:
    """Kubernetes' answers, in the order of the cases."""
    said = go.ask(*cases)
    for answer in said:
        if "compileError" in answer:
            answer["compileError"] = same_words(answer["compileError"])
    return [{kind: answer[kind] for kind in ("match", "compileError", "error") if kind in answer} for answer in said]


def same_words(compile_error: str) -> str:
    """Without the words of syntax errors: what the parser would have liked to see instead is the parser's own affair."""
    return "a syntax error" if "Syntax error:" in compile_error else compile_error
