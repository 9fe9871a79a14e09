"""Which selector makes a question too costly.

Owns the choice of the selector that is named, by what evaluating it costs on some devices. Called when a budget is used up, so it
looks at few devices only; whoever calls it bounds it again.
"""

from collections.abc import Iterator
from typing import Final

from draco.allocation.fleet.fleet import Fleet
from draco.cel.errors import CompileError, EvaluationError
from draco.cel.selector import Selector, compile_selector
from draco.cel.values.device import DeviceView, device_view
from draco.controller.workers.messages import MOST_STEPS, CostlySelector
from draco.resources.api.claims import DeviceSelector, ResourceClaim

_WORTH_NAMING: Final = 2_000
_SAMPLES: Final = 3


class Costliest:
    """The costliest selector found so far; can be asked while `look` is cut short."""

    def __init__(self, fleet: Fleet, claims: list[ResourceClaim]) -> None:
        self._fleet = fleet
        self._claims = claims
        self.found: CostlySelector | None = None

    def look(self) -> None:
        """Evaluate every selector on some devices."""
        views = list(self._samples())
        for named, selector in self._selectors():
            if selector.cel is None:
                continue
            try:
                compiled = compile_selector(selector.cel.expression)
            except CompileError:
                continue
            steps = max((_steps(compiled, view) for view in views), default=0)
            if steps >= _WORTH_NAMING and (self.found is None or steps > self.found.steps):
                self.found = CostlySelector(*named, steps)

    def _samples(self) -> Iterator[DeviceView]:
        columns = self._fleet.inventory.columns
        rows = [row for row, live in enumerate(columns.live) if live]
        for row in {rows[each * (len(rows) - 1) // (_SAMPLES - 1)] for each in range(_SAMPLES)} if rows else ():
            device = columns.devices[row]
            if device is None:
                continue
            try:
                yield device_view(columns.drivers[row], device)
            except EvaluationError:
                continue  # every selector fails on it at once

    def _selectors(self) -> Iterator[tuple[tuple[int, str, str, int], DeviceSelector]]:
        for index, claim in enumerate(self._claims):
            for request in claim.spec.devices.requests:
                for asked in (request.exactly, *request.first_available):
                    if asked is None:
                        continue
                    device_class = self._fleet.classes.get(asked.device_class_name)
                    of_class = device_class.spec.selectors if device_class is not None else []
                    for number, selector in enumerate(asked.selectors):
                        yield (index, request.name, "", number), selector
                    for number, selector in enumerate(of_class):
                        yield (index, "", asked.device_class_name, number), selector


def _steps(selector: Selector, view: DeviceView) -> int:
    try:
        return selector.cost(view)
    except EvaluationError as error:
        return MOST_STEPS if "cost limit" in str(error) else 0
