"""Situations from Kubernetes' own tests of its selector language, each as a case that the oracle answers.

Owns the list: reads by domain and name, attributes of every kind under every way to use one, capacities, names of domains and
attributes as values, what only compiles behind a feature gate, and a selector that costs too much.
"""

from collections.abc import Iterator

from tests.differential.selector_answers import Json

DRIVER = "gpu.example.com"
HERE = f'device.attributes["{DRIVER}"]'
ROOM = f'device.capacity["{DRIVER}"]'

_KINDS: dict[str, tuple[Json, list[str]]] = {
    "bool": ({"bool": True}, ["true", "false"]),
    "int": ({"int": 1}, ["1", "2"]),
    "string": ({"string": "heron"}, ['"heron"', '"crane"']),
    "version": ({"version": "1.0.0"}, ['semver("1.0.0")', 'semver("2.0.0")']),
    "bools": ({"bools": [True, True]}, ["true", "false"]),
    "ints": ({"ints": [1, 2]}, ["1", "3"]),
    "strings": ({"strings": ["heron", "crane"]}, ['"crane"', '"swan"']),
    "versions": ({"versions": ["1.0.0", "2.0.0"]}, ['semver("2.0.0")', 'semver("3.0.0")']),
    "long": ({"strings": [f"bird-{number}" for number in range(48)]}, ['"bird-47"', '"bird-48"']),
}
_USES = [
    "{it}",
    "{it} == {value}",
    "{it}.includes({value})",
    "{value} in {it}",
    "{it}.exists(x, x == {value})",
    "{it}.all(x, x != {value})",
    "{it}.size() == 2",
    '{it}.all(x, x.isGreaterThan(semver("0.1.0")))',
]
_BIRDS: dict[str, Json] = {
    "flies": {"bool": True},
    "legs": {"int": 2},
    "call": {"string": "kraak"},
    "plan": {"version": "1.4.0"},
    "eats": {"string": "fish, frogs"},
    "other.example.com/flies": {"bool": True},
}
_OF_BIRDS = [
    "true",
    "false",
    "?!",
    "1",
    "device.driver == ''",
    f'device.driver == "{DRIVER}"',
    'device.attributes["nowhere.example.com"].legs.isLessThan(quantity("2"))',
    'device.attributes["nowhere.example.com"]["legs"].isLessThan(quantity("2"))',
    '"nowhere.example.com" in device.attributes',
    f'"{DRIVER}" in device.attributes',
    f"{HERE}.flies",
    f'{HERE}["flies"]',
    'device.attributes["other.example.com"].flies',
    f"cel.bind(bird, {HERE}, bird.flies)",
    f"{HERE}.legs > 1",
    f'{HERE}.call == "kraak"',
    f'{HERE}.plan.isGreaterThan(semver("1.3.9"))',
    f'{HERE}.plan.isLessThan(semver("v2", true)) && isSemver("v1.4", true)',
    f'{ROOM}.wings.isGreaterThan(quantity("1Ki"))',
    f'{ROOM}["wings"].isGreaterThan(quantity("1Ki"))',
    f'"wings" in {ROOM} && {ROOM}.wings.isGreaterThan(quantity("1Ki"))',
    f'!("beaks" in {ROOM}) || {ROOM}.beaks.isGreaterThan(quantity("1Ki"))',
    f'{HERE}.flies &&\n{HERE}.legs > 1 &&\n{HERE}["call"] != "" &&\n{ROOM}.wings.compareTo(quantity("2Mi")) < 0\n',
    f'device.attributes.exists_one(x, x == "{DRIVER}")',
    f'{HERE}.exists_one(x, x == "legs")',
    f'device.capacity.exists_one(x, x == "{DRIVER}")',
    f'{ROOM}.exists_one(x, x == "wings")',
    f"{HERE}.filter(x, type({HERE}[x]) == int).map(x, {HERE}[x] * 3).exists(n, n == 6)",
    f'{HERE}.beak.isGreaterThan(semver("1.0.0"))',
    f'{HERE}["beak"]',
    f'{HERE}.?beak.orValue("none") == "none" && !has({HERE}.beak)',
    f'{HERE}.eats.split(",").size() >= 2',
    f'{HERE}.eats.matches("[^x]?ish")',
    "device.allowMultipleAllocations",
    "device.allowMultipleAllocations == false",
    "device.nosuchfield",
]


def situations() -> Iterator[tuple[str, Json]]:
    """All situations, each with its name."""
    for kind, (attribute, values) in _KINDS.items():
        device = {"driver": DRIVER, "attributes": {"it": attribute}, "capacity": {}}
        for use in _USES:
            for value in values if "{value}" in use else values[:1]:
                expression = use.format(it=f"{HERE}.it", value=value)
                yield f"{kind}: {expression}", {"expression": expression, "device": device}
    bird = {"driver": DRIVER, "attributes": _BIRDS, "capacity": {"wings": {"value": "1Mi"}}}
    for expression in _OF_BIRDS:
        yield expression, {"expression": expression, "device": bird}
    for shared in (True, False):
        yield (
            f"shared {shared}",
            {
                "expression": "device.allowMultipleAllocations",
                "device": bird | {"allowMultipleAllocations": shared},
            },
        )
    yield "no driver", {"expression": 'device.driver == ""', "device": {"driver": "", "attributes": {}, "capacity": {}}}
    costly = "int('7'.find('[0-9]*')) < 100"
    for name in "abcdefg":
        costly = f"[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all({name}, {costly})"
    yield "ten million steps", {"expression": costly, "device": bird}
