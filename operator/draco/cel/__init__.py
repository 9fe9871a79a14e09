"""The selector language: from a CEL expression to a function over a device, with Kubernetes' verdicts and words.

`compile_selector(expression)` gives a `Selector`; `Selector.matches(device_view(driver, device))` answers.

Rooms: text to tree in `cel.lark` (the grammar), `literals`, `macros`, `parse`, `ast`, `measure`; the type check in `types`,
`environment`, `check`, `validate`, with its findings in `issues`; what an expression reads in `paths`; values in `values`,
`texts`, `device`; functions and operators in `functions`, one table with a row per overload (`overloads`) that the type check,
the compiler and both cost models read, with `regex`; tree to closures in `compile`, `reads`, `logic`, `loops`,
`code`; costs that are charged in `charges`, `limits`, `bounds`, estimated ones in `cost`, `estimates`, and those of functions
in `function_costs`; the front door in `selector`.
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
