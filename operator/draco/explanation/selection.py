"""What the selectors of one request select among all devices, step by step.

Owns the chain of the class's and the request's selectors, and the rows that pass each. A marked row is a selected device, whether
free or in use, reachable or not. Selectors that a configuration implies are no part of the chain: nobody can change them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Final

import msgspec

from draco.allocation.configured_claims import ImpliedSelector
from draco.allocation.fleet.columns import Columns
from draco.allocation.fleet.fleet import Fleet
from draco.allocation.fleet.rowwise import places, select
from draco.allocation.fleet.selectors import FAILS, YES
from draco.cel.errors import CompileError, EvaluationError
from draco.explanation.model import SelectorRef
from draco.resources.api.claims import DeviceClass, DeviceSubRequest, ExactDeviceRequest, ResourceClaim

Asked = ExactDeviceRequest | DeviceSubRequest
_YES: Final = bytes(code == YES for code in range(256))
_FAILS: Final = bytes(code == FAILS for code in range(256))


class SelectorStep(msgspec.Struct, frozen=True, eq=False):
    """One selector of the chain."""

    ref: SelectorRef
    before: bytes
    """1 for each device that passes the selectors before it."""
    after: bytes
    """1 for each of those that it selects."""
    failed: bytes
    """1 for each of those on which it fails."""
    error: CompileError | None = None
    """The compile error; such a selector is skipped, because its result is unknown. None if it compiles."""


class Selection(msgspec.Struct, frozen=True, eq=False):
    """The whole chain; `of_class` is the number of the class's steps."""

    start: bytes
    """1 for each device."""
    steps: Sequence[SelectorStep]
    of_class: int
    able: bytes
    """1 for each device that can have the configuration of a claim that Draco allocates."""

    @property
    def by_class(self) -> bytes:
        """1 for each device that the class selects."""
        return self.steps[self.of_class - 1].after if self.of_class else self.start

    @property
    def end(self) -> bytes:
        """1 for each device that all of them select."""
        return self.steps[-1].after if self.steps else self.start

    @property
    def eligible(self) -> bytes:
        """1 for each of those that can have the configuration."""
        return select([self.end, self.able])

    @property
    def own(self) -> Sequence[SelectorStep]:
        """The request's own steps."""
        return self.steps[self.of_class :]


def least(asked: Asked) -> int:
    """The least number of devices that it takes."""
    return 1 if asked.allocation_mode == "All" else asked.count


def with_devices(claim: ResourceClaim, **fields: object) -> ResourceClaim:
    """The claim with other requests or constraints."""
    devices = msgspec.structs.replace(claim.spec.devices, **fields)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def selection(
    fleet: Fleet, claim: ResourceClaim, device_class: DeviceClass, asked: Asked, *, called: str = ""
) -> Selection:
    """Run the chain over all devices. `called` names the author's object if it is not a claim of this name yet."""
    claims_own = called or f"claim {claim.metadata.key}"
    own = [each for each in asked.selectors if not isinstance(each, ImpliedSelector)]
    sources = [
        *((f"class {device_class.metadata.name}", *each) for each in enumerate(device_class.spec.selectors)),
        *((claims_own, *each) for each in enumerate(own)),
    ]
    start = bytes(fleet.inventory.columns.live)
    marks = start
    steps = []
    for source, index, selector in sources:
        ref = SelectorRef(source=source, index=index, expression=selector.cel.expression if selector.cel else "")
        step = step_of(fleet, ref, marks)
        marks = step.after
        steps.append(step)
    able = start
    for each in asked.selectors[len(own) :]:
        able = met(fleet, each.cel.expression if each.cel else "", able)
    return Selection(start, steps, len(device_class.spec.selectors), able)


def step_of(fleet: Fleet, ref: SelectorRef, before: bytes) -> SelectorStep:
    """What a selector does to the devices that pass those before it."""
    try:
        outcomes = fleet.inventory.selectors.scan(ref.expression).outcomes
    except CompileError as error:
        return SelectorStep(ref, before, before, bytes(len(before)), error.with_traceback(None))
    after = select([before, outcomes.translate(_YES)])
    return SelectorStep(ref, before, after, select([before, outcomes.translate(_FAILS)]))


def met(fleet: Fleet, expression: str, among: bytes) -> bytes:
    """1 for each marked device that the expression selects. Raises CompileError."""
    return select([among, fleet.inventory.selectors.scan(expression).outcomes.translate(_YES)])


def failing(fleet: Fleet, expression: str, among: bytes) -> bytes:
    """1 for each marked device on which the expression fails. Raises CompileError."""
    return select([among, fleet.inventory.selectors.scan(expression).outcomes.translate(_FAILS)])


def errors_on(fleet: Fleet, expression: str, rows: Iterable[int]) -> Iterator[str]:
    """The errors with which the expression fails on devices. Raises CompileError."""
    columns = fleet.inventory.columns
    for row in rows:
        device = columns.devices[row]
        if device is not None:
            try:
                fleet.inventory.selectors.matches(expression, columns.drivers[row], device, row)
            except EvaluationError as error:
                yield str(error)


def count(marks: bytes) -> int:
    """The number of marked rows."""
    return marks.count(1)


def first_rows(marks: bytes, most: int) -> list[int]:
    """The first marked rows, at most `most`."""
    if count(marks) <= most:
        return places(marks, 1)
    rows: list[int] = []
    row = -1
    while len(rows) < most:
        row = marks.find(1, row + 1)
        rows.append(row)
    return rows


def drivers_of(columns: Columns, marks: bytes) -> list[str]:
    """The drivers of the marked devices, sorted."""
    return sorted(set(compress(columns.drivers, memoryview(marks))))
