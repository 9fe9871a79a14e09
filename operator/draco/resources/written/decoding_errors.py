"""Words for what cannot be decoded: msgspec's errors as a place in the manifest, what is wrong there, and the fix."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from draco.resources.written.forms import ChosenKey, Place, ValueRefusal, short

_AT: Final = re.compile(r"(?P<what>.*?)(?: - at (?:key in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_EXPECTED: Final = re.compile(r"Expected `(?P<want>[^`]+)`, got `(?P<got>[^`]+)`")
_NOT_ONE_OF: Final = re.compile(r"Invalid enum value (?P<got>.*)", re.DOTALL)
_SOME_KEY: Final = ChosenKey("...")
_STEP: Final = re.compile(r"\[(?P<index>\d+|\.{3})\]|(?P<name>[^.\[\]]+)")
_INDEX: Final = re.compile(r"\[[^]]*\]")
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_WORDS: Final[Mapping[str, str]] = {
    "array": "a list",
    "bool": "true or false",
    "datetime": "a time such as 2026-03-01T12:00:00Z",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "a string",
}


def refused_value(problem: str, stored: Any, type_: type) -> ValueRefusal:
    """Put an error of msgspec into the words of the API. Changes `stored`, which could not be converted to the type."""
    found = _refusal(problem, type_)
    return found._replace(place=_with_keys(found.place, stored, type_, problem))


def _refusal(problem: str, type_: type) -> ValueRefusal:
    found = _AT.fullmatch(problem)
    what, path = (found["what"], found["path"] or "") if found else (problem, "")
    place = _place_of(path)
    if missing := _MISSING.fullmatch(what):
        return ValueRefusal((*place, missing["name"]), "is missing; it must be set")
    if other := _NOT_ONE_OF.fullmatch(what):
        *most, last = _values(type_, path)
        one_of = f"{', '.join(most)} or {last}" if most else last
        return ValueRefusal(place, f"is {short(other['got'])}; it must be {one_of}")
    if expected := _EXPECTED.fullmatch(what):
        want = " or ".join(
            _WORDS.get(each.strip(), each.strip()) for each in expected["want"].split("|") if each.strip() != "null"
        )
        hint = (
            "; put it in quotes"
            if expected["want"].startswith("str") and expected["got"] in {"int", "float", "bool"}
            else ""
        )
        return ValueRefusal(place, f"must be {want}, not {_WORDS.get(expected['got'], expected['got'])}{hint}")
    return ValueRefusal(place, f"is wrong: {what[:1].lower()}{what[1:]}" if place else what)


def _place_of(path: str) -> Place:
    """The place in msgspec's "spec.devices[0].name", which does not say which key of a mapping it is."""
    steps: list[str | int] = []
    for step in _STEP.finditer(path):
        index, name = step["index"], step["name"]
        steps.append(name or (_SOME_KEY if index == "..." else int(index)))
    return tuple(steps)


def _with_keys(place: Place, stored: Any, type_: type, problem: str) -> Place:
    """The place with the key of each mapping, which msgspec does not say: with it alone the error is the same."""
    found: list[str | int] = []
    here = stored
    for step in place:
        if step == _SOME_KEY and isinstance(here, dict):
            values = dict(here)
            for key, value in values.items():
                here.clear()
                here[key] = value
                if _error(stored, type_) == problem:
                    break
            found.append(ChosenKey(next(iter(here), step)))
        else:
            found.append(step)
        here = _inner(here, found[-1])
    return tuple(found)


def _inner(holder: Any, step: str | int) -> Any:
    try:
        return holder[step]
    except (KeyError, IndexError, TypeError):  # a missing field, or a mapping in the place of a list
        return None


def _error(stored: Any, type_: type) -> str:
    try:
        msgspec.convert(stored, type_)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _values(type_: type, path: str) -> list[str]:
    """The valid values at a path where msgspec expects an enum."""
    shape = msgspec.inspect.type_info(type_)
    for step in _INDEX.sub(".[]", path).split("."):
        shape = _without_null(shape)
        if isinstance(shape, msgspec.inspect.ListType) and step == "[]":
            shape = shape.item_type
        elif isinstance(shape, msgspec.inspect.StructType):
            shape = next((field.type for field in shape.fields if field.encode_name == step), shape)
    shape = _without_null(shape)
    return [str(each.value) for each in shape.cls] if isinstance(shape, msgspec.inspect.EnumType) else ["another value"]


def _without_null(shape: msgspec.inspect.Type) -> msgspec.inspect.Type:
    if not isinstance(shape, msgspec.inspect.UnionType):
        return shape
    return next((each for each in shape.types if not isinstance(each, msgspec.inspect.NoneType)), shape)
