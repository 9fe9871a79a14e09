"""The selector language: compiles a CEL expression to a function over a device, with Kubernetes' verdicts and error texts.

`compile_selector(expression)` gives a `Selector`; `Selector.matches(device_view(driver, device))` answers. Each room knows only
those after it: `device_testing` (several selectors for many devices), `selector` (entry point), `paths` (what an expression
reads), `evaluation` (closures and charges) beside `checking` (types, literals, estimated cost), `functions` (one row per
overload), `values`, `syntax` (parser).
"""

from draco.cel.checking.environment import STORED_EXPRESSIONS, Environment, new_expressions
from draco.cel.device_testing import DeviceTest
from draco.cel.errors import CompileError, EvaluationAborted, EvaluationError, one_line
from draco.cel.paths import AttributePath
from draco.cel.selector import Selector, compile_selector, ready_selector
from draco.cel.values.device import DeviceVariable, device_view

__all__ = [
    "STORED_EXPRESSIONS",
    "AttributePath",
    "CompileError",
    "DeviceTest",
    "DeviceVariable",
    "Environment",
    "EvaluationAborted",
    "EvaluationError",
    "Selector",
    "compile_selector",
    "device_view",
    "new_expressions",
    "one_line",
    "ready_selector",
]
