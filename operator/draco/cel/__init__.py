"""The selector language: from a CEL expression to a function over a device, with Kubernetes' verdicts and words.

`compile_selector(expression)` gives a `Selector`; `Selector.matches(device_view(driver, device))` answers.

Rooms: text to tree in `grammar`, `literals`, `macros`, `parse`, `ast`, `measure`; the type check in `types`, `environment`,
`overloads`, `check`, `validate`, with its findings in `issues`; what an expression reads in `paths`; values in `values`, `texts`,
`device`; functions in `operators`, `functions_*`, `regex`, `membership`, brought together by `dispatch` and `functions`; tree to
closures in `compile`, `loops`, `code`; costs in `charges`, `limits` and, estimated, `cost`; the front door in `selector`.
"""

from draco.cel.device import DeviceView, device_view
from draco.cel.environment import STORED_EXPRESSIONS, Environment, new_expressions
from draco.cel.errors import CompileError, EvaluationAborted, EvaluationError
from draco.cel.paths import AttributePath
from draco.cel.selector import Selector, compile_selector

__all__ = [
    "STORED_EXPRESSIONS",
    "AttributePath",
    "CompileError",
    "DeviceView",
    "Environment",
    "EvaluationAborted",
    "EvaluationError",
    "Selector",
    "compile_selector",
    "device_view",
    "new_expressions",
]
