"""Selectors on devices: compiled once, evaluated once per combination of the values they read.

Owns what is remembered of selectors for the devices of one inventory. How an expression is compiled and what it sees of a
device is passed in.
"""

from array import array
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from draco.allocation.columns import Columns, Path
from draco.cel.errors import CompileError, EvaluationError
from draco.resources.slices import Device

MAX_SELECTORS: Final = 4096
MAX_REMEMBERED: Final = 65536
"""Outcomes remembered of one selector; one that reads a serial number has as many as there are devices."""


class AttributePath(Protocol):
    """One thing that a selector reads; without an id, a whole domain, and without a domain, all of them."""

    @property
    def kind(self) -> str:
        """attributes, capacity, driver or allowMultipleAllocations."""
        ...

    @property
    def domain(self) -> str | None:
        """The domain of the name."""
        ...

    @property
    def id(self) -> str | None:
        """The name in its domain."""
        ...


class Selector(Protocol):
    """A compiled selector."""

    @property
    def paths(self) -> Iterable[AttributePath]:
        """All that it can read of a device."""
        ...

    @property
    def reads_everything(self) -> bool:
        """Whether `paths` does not say everything."""
        ...

    def matches(self, device: Any, /) -> bool:
        """Whether the device is selected. Raises EvaluationError."""
        ...


Compile = Callable[[str], Selector]
View = Callable[[str, Device], Any]
"""What a selector sees of a driver's device."""


class _Entry:
    """A compiled selector with its outcomes, by the codes of what it reads; without `codes`, nothing is remembered."""

    def __init__(self, selector: Selector, codes: tuple["array[int]", ...] | None) -> None:
        self.selector = selector
        self.codes = codes
        self.outcomes: dict[tuple[int, ...], bool | EvaluationError] = {}


class Selectors:
    """The selectors that were met, with their outcomes on the devices of one inventory."""

    def __init__(self, columns: Columns, compile_selector: Compile, view: View) -> None:
        self._columns = columns
        self._compile = compile_selector
        self._view = view
        self._entries: dict[str, _Entry | CompileError] = {}

    def matches(self, expression: str, driver: str, device: Device, row: int) -> bool:
        """Whether the expression selects the device of that row. Raises CompileError and EvaluationError."""
        entry = self._entries.get(expression)
        if entry is None:
            entry = self._add(expression)
        if isinstance(entry, CompileError):
            raise entry.with_traceback(None)
        if entry.codes is None or row in self._columns.irregular:
            return entry.selector.matches(self._view(driver, device))
        seen = tuple([codes[row] for codes in entry.codes])
        outcome = entry.outcomes.get(seen)
        if outcome is None:
            outcome = self._evaluate(entry.selector, driver, device)
            if len(entry.outcomes) >= MAX_REMEMBERED:
                entry.outcomes.clear()
            entry.outcomes[seen] = outcome
        if isinstance(outcome, EvaluationError):
            raise outcome.with_traceback(None)
        return outcome

    def _evaluate(self, selector: Selector, driver: str, device: Device) -> bool | EvaluationError:
        try:
            return selector.matches(self._view(driver, device))
        except EvaluationError as error:
            return error

    def _add(self, expression: str) -> _Entry | CompileError:
        if len(self._entries) >= MAX_SELECTORS:
            self._entries.clear()
        try:
            selector = self._compile(expression)
        except CompileError as error:
            entry: _Entry | CompileError = error
        else:
            entry = _Entry(selector, self._codes(selector))
        self._entries[expression] = entry
        return entry

    def _codes(self, selector: Selector) -> tuple["array[int]", ...] | None:
        if selector.reads_everything:
            return None
        columns = []
        for path in selector.paths:
            if path.kind in {"attributes", "capacity"} and not (path.domain and path.id):
                return None
            column = self._columns.read(Path(path.kind, path.domain or "", path.id or ""))
            if column is None:
                return None
            columns.append(column.codes)
        return tuple(columns)
