"""Checks MigPolicies in files against what an API server accepts.

Owns the rules of the kind's schema, each with a sentence that says what to write. Wrong field types are refused earlier, when the
manifest is decoded. Pure.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from draco.cli.input.manifests import Manifest
from draco.cli.input.words import is_name, is_time_of_day
from draco.resources.api.draco import MigLayout, MigMode, MigPolicy, MigPolicySpec, MigReset, ResetPermit
from draco.resources.names import LONGEST_NAME
from draco.resources.windows import lasting

_LAYOUT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LONGEST_LAYOUT_NAME: Final = 63
_LONGEST_EXPRESSION: Final = 10_240
_MOST_INSTANCES: Final = 32
_LAST_UNIT: Final = 63
_MOST_MOVES: Final = 2
_SHORTEST: Final = timedelta(minutes=1)
_LONGEST: Final = timedelta(hours=24)
_LONGEST_LEAD_S: Final = 3600
_WITH_VALUES: Final = ("In", "NotIn")
_OPERATORS: Final = (*_WITH_VALUES, "Exists", "DoesNotExist")


def refusal(policy: MigPolicy, manifest: Manifest) -> str:
    """Why an API server would refuse the policy decoded from this manifest; "" if it would not."""
    spec = policy.spec
    if unknown := _unknown_field(MigPolicySpec, manifest.get("spec"), "spec"):
        return unknown
    problems = (
        _name(policy),
        _selection(spec),
        _counts(manifest.get("spec")),
        _layouts(spec),
        _warm(spec),
        _reset(spec.reset),
    )
    if not 0 <= spec.repair.max_moves <= _MOST_MOVES:
        return f"spec.repair.maxMoves is {spec.repair.max_moves}: it must be 0, 1 or 2"
    return next((problem for each in problems for problem in each), "")


def _name(policy: MigPolicy) -> Iterator[str]:
    if not is_name(policy.metadata.name):
        yield (
            "metadata.name must contain only lower-case letters, digits, - and ., begin and end with a letter or digit, and have "
            f"at most {LONGEST_NAME} characters"
        )


def _selection(spec: MigPolicySpec) -> Iterator[str]:
    for each in spec.node_selector.match_expressions if spec.node_selector else ():
        where = f"spec.nodeSelector.matchExpressions for {each.key}"
        if each.operator not in _OPERATORS:
            yield f"{where}: operator is {each.operator!r}; it must be {', '.join(_OPERATORS[:-1])} or {_OPERATORS[-1]}"
        elif (each.operator in _WITH_VALUES) != bool(each.values):
            yield f"{where}: {each.operator} {'needs' if each.operator in _WITH_VALUES else 'takes no'} values"
    for index, selector in enumerate(spec.device_selectors):
        expression = selector.cel.expression if selector.cel else ""
        if not expression:
            yield f"spec.deviceSelectors[{index}].cel.expression is missing; it must be set"
        elif len(expression) > _LONGEST_EXPRESSION:
            yield f"spec.deviceSelectors[{index}].cel.expression has more than {_LONGEST_EXPRESSION} characters"
    for uuid in spec.exclude:
        if not uuid.startswith("GPU-"):
            yield f"spec.exclude names {uuid}: the UUID of a GPU begins with GPU-; `draco layout show -o json` lists them"
    yield from _repeated("spec.exclude", spec.exclude)


def _layouts(spec: MigPolicySpec) -> Iterator[str]:
    names = [layout.name for layout in spec.layouts]
    if spec.mode is MigMode.STATIC and not spec.layout:
        yield "mode Static needs spec.layout to name one of spec.layouts"
    if spec.layout and spec.layout not in names:
        known = f"it has {', '.join(names)}" if names else "it is empty"
        yield f"spec.layouts has no layout named {spec.layout}: {known}"
    if twice := _twice(names):
        yield f"spec.layouts has two layouts named {twice}; remove one of them"
    for layout in spec.layouts:
        yield from _layout(layout)


def _layout(layout: MigLayout) -> Iterator[str]:
    if not _LAYOUT_NAME.fullmatch(layout.name) or len(layout.name) > _LONGEST_LAYOUT_NAME:
        yield (
            f"a layout is named {layout.name!r}: its name must contain only lower-case letters, digits and -, begin and "
            f"end with a letter or digit, and have at most {_LONGEST_LAYOUT_NAME} characters"
        )
    if not layout.instances:
        yield f"layout {layout.name} has no instances; name at least one profile"
    for each in layout.instances:
        if each.start is not None and each.count != 1:
            yield (
                f"layout {layout.name} wants {each.count} x {each.profile} at {each.start}: only one instance can be at a start; "
                "write one entry for each, or leave start out"
            )
        if each.start is not None and not 0 <= each.start <= _LAST_UNIT:
            yield f"layout {layout.name} wants {each.profile} at {each.start}: a start must be from 0 to {_LAST_UNIT}"


def _warm(spec: MigPolicySpec) -> Iterator[str]:
    for each in spec.warm:
        if spec.profiles and each.profile not in spec.profiles:
            yield f"spec.warm names {each.profile}, which spec.profiles does not list; add it there"
    yield from _repeated("spec.warm", [each.profile for each in spec.warm])
    yield from _repeated("spec.profiles", spec.profiles)
    yield from _warm_ahead(spec)


def _warm_ahead(spec: MigPolicySpec) -> Iterator[str]:
    ahead = spec.warm_ahead
    if ahead is None:
        return
    if spec.mode is not MigMode.DYNAMIC:
        yield "spec.warmAhead needs mode Dynamic; leave it out in other modes"
    if not ahead.limits:
        yield "spec.warmAhead.limits is empty; name at least one profile"
    if not _SHORTEST <= lasting(ahead.window) <= _LONGEST:
        yield f"spec.warmAhead.window must be 1m to 24h, in hours and minutes such as 10m, not {ahead.window}"
    if not 1 <= ahead.lead_time_seconds <= _LONGEST_LEAD_S:
        yield f"spec.warmAhead.leadTimeSeconds is {ahead.lead_time_seconds}: it must be from 1 to {_LONGEST_LEAD_S}"
    for each in ahead.limits:
        if not each.profile:
            yield "spec.warmAhead.limits has an entry without a profile; name one, such as 1g.10gb"
            continue
        if spec.profiles and each.profile not in spec.profiles:
            yield f"spec.warmAhead names {each.profile}, which spec.profiles does not list; add it there"
        if each.profile in {one.profile for one in spec.warm}:
            yield f"spec.warmAhead names {each.profile}, which spec.warm keeps on each GPU; leave it out of one of them"
    yield from _repeated("spec.warmAhead.limits", [each.profile for each in ahead.limits])


def _reset(reset: MigReset) -> Iterator[str]:
    if reset.permit is ResetPermit.IN_WINDOWS and not reset.windows:
        yield "permit InWindows needs at least one window in spec.reset.windows"
    for window in reset.windows:
        if not is_time_of_day(window.start):
            yield f'a window of spec.reset must start at a time such as "22:00", not "{window.start}"'
        if not _SHORTEST <= lasting(window.duration) <= _LONGEST:
            yield (
                f"a window of spec.reset must be open for 1m to 24h, in hours and minutes such as 2h30m, not {window.duration}"
            )
        yield from _repeated("days of a window of spec.reset", window.days)


def _repeated(where: str, names: Iterable[str]) -> Iterator[str]:
    if twice := _twice(names):
        yield f"{where} names {twice} twice; remove one of them"


def _twice(names: Iterable[str]) -> str:
    return next((name for name, count in Counter(names).items() if count > 1), "")


def _counts(value: object) -> Iterator[str]:
    """Check every count in the manifest itself: decoding turns 0 into the API's value for "unset"."""
    if isinstance(value, Mapping):
        count = value.get("count")
        if isinstance(count, int) and count < 1:
            yield f"count of {value.get('profile')} is {count}: it must be at least 1"
        elif isinstance(count, int) and count > _MOST_INSTANCES:
            yield f"count of {value.get('profile')} is {count}: it must be at most {_MOST_INSTANCES}"
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _counts(inner)


def _unknown_field(type_: Any, value: object, path: str) -> str:
    """The first unknown field, with a suggestion; "" if there is none."""
    shape = msgspec.inspect.type_info(type_) if isinstance(type_, type) else type_
    if isinstance(shape, msgspec.inspect.UnionType):
        shape = next((each for each in shape.types if not isinstance(each, msgspec.inspect.NoneType)), shape)
    if isinstance(shape, msgspec.inspect.ListType) and isinstance(value, list):
        found = (_unknown_field(shape.item_type, each, f"{path}[{index}]") for index, each in enumerate(value))
        return next(filter(None, found), "")
    if not isinstance(shape, msgspec.inspect.StructType) or not isinstance(value, Mapping):
        return ""
    fields = {field.encode_name: field.type for field in shape.fields}
    for name, inner in value.items():
        if name not in fields:
            near = difflib.get_close_matches(str(name)[:100], fields, n=1)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
            return f"there is no field {path}.{name}: {meant}".removesuffix("?") + ("?" if near else "")
        if deeper := _unknown_field(fields[name], inner, f"{path}.{name}"):
            return deeper
    return ""
