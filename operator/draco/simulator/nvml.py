"""SimulatedNvml: pynvml's functions, answered from a state file instead of a driver.

Owns the one object that stands in for the module `pynvml`: names, arguments, return values and exceptions are pynvml's
own. What the functions answer is in the `nvml_*` modules beside this one, by area. It keeps no module-level state, so
that hundreds of nodes fit into one process; every instance behaves like a process of its own.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from draco.simulator.nvml_events import Events
from draco.simulator.nvml_health import Health
from draco.simulator.nvml_identity import Identity
from draco.simulator.nvml_links import Links
from draco.simulator.nvml_mig import Mig
from draco.simulator.nvml_session import Session
from draco.simulator.nvml_system import System

_WITHOUT_INIT = frozenset({"nvmlInit", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"})


class SimulatedNvml:
    """An object with pynvml's module-level functions, over the state in `state_file`.

    A function that pynvml has and the simulator does not raises NVMLError_FunctionNotFound, as pynvml does when the
    driver's library is too old. StateError when the state file is missing or damaged. `sleep` takes injected latency.
    """

    def __init__(self, state_file: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        session = Session(state_file, sleep=sleep)
        self._session = session
        self._functions = {
            name: self._guarded(name, getattr(area, name))
            for area in (
                System(session),
                Identity(session),
                Links(session),
                Health(session),
                Mig(session),
                Events(session),
            )
            for name in dir(area)
            if name.startswith("nvml")
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        functions: dict[str, Callable[..., Any]] = self.__dict__.get("_functions", {})
        if name in functions:
            return functions[name]
        if not name.startswith("nvml"):
            raise AttributeError(name)
        real = getattr(pynvml, name)  # AttributeError for what pynvml does not have either

        @functools.wraps(real)
        def missing(*_args: object, **_options: object) -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

        return missing

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._functions})

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if name in _WITHOUT_INIT:
            return function

        @functools.wraps(function)
        def guarded(*args: Any, **options: Any) -> Any:
            self._session.enter(name)
            return function(*args, **options)

        return guarded
