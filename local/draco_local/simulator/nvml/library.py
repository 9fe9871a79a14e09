"""SimulatedNvml: pynvml's functions, answered from a state file instead of a driver.

Owns the one object that stands in for the module `pynvml`: names, arguments, return values and exceptions are pynvml's
own. What the functions answer is in the modules beside this one, by area. It keeps no module-level state, so
that hundreds of nodes fit into one process; every instance behaves like a process of its own.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from draco_local.simulator.gpus.drivers import FIRST_WITH
from draco_local.simulator.nvml.events import EventCalls
from draco_local.simulator.nvml.gpm import GpmCalls
from draco_local.simulator.nvml.health import HealthCalls
from draco_local.simulator.nvml.identity import IdentityCalls
from draco_local.simulator.nvml.instances import InstanceCalls
from draco_local.simulator.nvml.links import LinkCalls
from draco_local.simulator.nvml.memory_limits import MemoryLimitCalls
from draco_local.simulator.nvml.mig import MigCalls
from draco_local.simulator.nvml.processes import ProcessCalls
from draco_local.simulator.nvml.session import NEVER_FAIL, NVIDIA_SMI, Session
from draco_local.simulator.nvml.sharing import SharingCalls
from draco_local.simulator.nvml.system import SystemCalls

_STARTS = frozenset({"nvmlInit", "nvmlInitWithFlags"})
Step = Callable[[str], None]


def _no_step(_point: str) -> None:
    """Do nothing."""


class SimulatedNvml:
    """An object with pynvml's module-level functions, over the state in `state_file`.

    A function that pynvml has and the simulator or its driver's release does not raises NVMLError_FunctionNotFound, as pynvml
    does when the driver's library is too old. StateError when the state file is missing or damaged. `sleep` takes injected
    latency. `is_root`: whether the process may do what only root may.

    `step` is called with "before nvmlX" and "after nvmlX" around every function, also one that fails; what it raises goes
    to the caller, as if the process had ended there: before, nothing has happened yet; after, everything has. A call that hangs
    says "hangs nvmlX" once.
    """

    def __init__(
        self,
        state_file: Path,
        *,
        sleep: Callable[[float], None] = time.sleep,
        step: Step = _no_step,
        is_root: bool = True,
    ) -> None:
        session = Session(state_file, sleep=sleep)
        self._session = session
        self._step = step
        sharing = SharingCalls(session)
        self._time_slice = self._guarded(NVIDIA_SMI, sharing.time_slice)
        self._functions = {
            name: self._guarded(name, getattr(area, name))
            for area in (
                SystemCalls(session),
                IdentityCalls(session),
                LinkCalls(session),
                HealthCalls(session),
                ProcessCalls(session),
                GpmCalls(session),
                sharing,
                MemoryLimitCalls(session, is_root=is_root),
                MigCalls(session),
                InstanceCalls(session),
                EventCalls(session),
            )
            for name in dir(area)
            if name.startswith("nvml")
        }

    @property
    def nvidia_smi_installed(self) -> bool:
        """Whether the node has the program."""
        return self._session.state().driver.nvidia_smi

    def time_slice(self, device: Any, value: int | None = None) -> int:
        """Return a GPU's time slice, after setting it to `value` if that is given: only nvidia-smi can."""
        found: int = self._time_slice(device, value)
        return found

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
        @functools.wraps(function)
        def guarded(*args: Any, **options: Any) -> Any:
            self._step(f"before {name}")
            try:
                answer = self._answer(name, function, args, options)
            except pynvml.NVMLError:
                self._step(f"after {name}")
                raise
            self._step(f"after {name}")
            return answer

        return guarded

    def _answer(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if name in NEVER_FAIL:
            return function(*args, **options)
        if name not in _STARTS:
            self._session.live_state()
        if FIRST_WITH.get(name, 0) > self._session.release():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self._session.delay(name)
        given = next(iter((*args, *options.values())), None)
        if any(each.effect == "hang" for each in self._session.state().failures):
            self._session.hang(name, given, lambda: self._step(f"hangs {name}"))
        failure = self._session.take_failure(name, given)
        if failure is None:
            return function(*args, **options)
        if failure.effect == "done":
            function(*args, **options)
        raise pynvml.NVMLError(failure.error)
