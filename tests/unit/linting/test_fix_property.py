"""A correction never widens or strengthens what an author meant: random manifests, each written with an intention.

Owns the authors: what they mean, their typical mistakes, and what else the same text could mean. What the corrected manifest
selects must be a subset of what each reading selects. `DRACO_FIXES=1000000` tries many more.
"""

import copy
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from draco.cli.lint.edits import EditRound, as_tree
from draco.linting.model import Json, Manifest
from draco.linting.rules import lint

MANIFESTS = int(os.environ.get("DRACO_FIXES", "2400"))
SLICES = 8
NODES, GPUS = ("node-1", "node-2"), ("gpu-0", "gpu-1", "gpu-3")
DRIVERS = ("gpu.nvidia.com", "gpu.example.com")
CLASSES = ("gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com", "gpu.example.com")
EFFECTS = ("None", "NoSchedule", "NoExecute")
ODD_EFFECTS = ("PreferNoSchedule", "NoSchedul", "noschedule", "noExecute", "no", "", "All", "Drain")


class Device(NamedTuple):
    """A device of the small fleet, which a selector matches or not."""

    driver: str
    pool: str
    device: str

    @property
    def uuid(self) -> str:
        """The UUID of its board."""
        return f"GPU-{self.pool}-{self.device}"


FLEET = [Device(driver, pool, device) for driver in DRIVERS for pool in NODES for device in GPUS]


class Written(NamedTuple):
    """What an author wrote, and what the corrected text asks for beyond it ("" for nothing)."""

    tree: Json
    too_much: Callable[[Json], str]


def corrected(*trees: Json) -> list[Any]:
    """The manifests with all corrections of lint applied, round by round as the command does it."""
    found = [as_tree(copy.deepcopy(tree)) for tree in trees]
    for _ in range(8):
        changed, rounds = False, [EditRound(tree) for tree in found]
        read = [Manifest(json.loads(json.dumps(tree))) for tree in found]  # as the command reads them
        for finding in lint(read, kubernetes=36):
            for number, edit in finding.edits:
                changed |= rounds[number].apply(edit) == "changed"
        if not changed:
            break
    return found


def slip(chance: random.Random, word: str) -> str:
    """The word with a typing mistake."""
    at = chance.randrange(1, len(word) - 1)
    return chance.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at] + word[at:],
            word.lower(),
            word.upper(),
            word.capitalize(),
            word.replace("e", "a"),
        ]
    )


def is_refused(tree: Json) -> bool:
    """Whether it still has an unknown field, so that the API server refuses it and its author must fix it."""
    left = lint([Manifest(tree)], kubernetes=36)
    return any(
        each.rule in {"unknown-field", "field-place", "field-form", "selector-form", "taint-rule-selector"}
        for each in left
    )


# Taint rules


def hit(selector: Mapping[str, Any]) -> set[Device]:
    """The devices that a cluster taints: unknown fields are dropped."""
    known = {field: selector[field] for field in Device._fields if selector.get(field)}
    return {each for each in FLEET if all(getattr(each, field) == value for field, value in known.items())}


FOREIGN: dict[str, Callable[[Device, str], bool]] = {
    "uuid": lambda device, value: device.uuid == value,
    "deviceName": lambda device, value: device.device == value,
    "name": lambda device, value: device.device == value,
    "devices": lambda device, value: device.device == value,
    "gpu": lambda device, value: device.device == value,
    "nodeName": lambda device, value: device.pool == value,
    "node": lambda device, value: device.pool == value,
    "poolName": lambda device, value: device.pool == value,
    "deviceClassName": lambda device, value: device.driver == value,
    "driverName": lambda device, value: device.driver == value,
    "model": lambda device, value: device.driver == "gpu.nvidia.com",
}
"""What fields that a rule does not have would select."""


def a_rule(chance: random.Random) -> Written:
    """A rule by which an author means to taint some devices."""
    target = chance.choice(FLEET)
    values = {"uuid": target.uuid, "model": "NVIDIA H100 80GB HBM3"}
    written: Json = {}
    meant = set(FLEET)
    for field in chance.sample(Device._fields, chance.randrange(4)):
        value = getattr(target, field)
        meant &= {each for each in FLEET if getattr(each, field) == value}
        written[slip(chance, field) if chance.random() < 0.3 else field] = value
    for field in chance.sample(list(FOREIGN), chance.choice((0, 0, 1, 2))):
        value = values.get(field, "")
        for own in Device._fields:
            value = value or (getattr(target, own) if FOREIGN[field](target, getattr(target, own)) else "")
        meant &= {each for each in FLEET if FOREIGN[field](each, value)}
        written[field] = value
    effect = chance.choice((*ODD_EFFECTS, *EFFECTS))
    spec: Json = {"taint": {"key": "example.com/broken", "effect": effect}}
    if chance.random() < 0.15:
        spec.update(written)
    elif chance.random() < 0.9:
        spec[slip(chance, "deviceSelector") if chance.random() < 0.1 else "deviceSelector"] = written
    if chance.random() < 0.2:
        spec[chance.choice(("effect", "key", "value"))] = spec["taint"].pop("effect")
    version = chance.choice(("v1beta2", "v1alpha3", "v1", "v1beta1"))
    tree: Json = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "rule"},
        "spec": spec,
    }

    def too_much(fixed: Json) -> str:
        now = fixed["spec"]
        if "deviceSelector" in now:
            after = hit(now["deviceSelector"])
            if "deviceSelector" in spec and not after <= hit(spec["deviceSelector"]):
                return "more than the same fields hit before"
            if now != spec and not is_refused(fixed) and not after <= meant:
                return "more than was meant"
        if (after_effect := now["taint"].get("effect", "")) != effect and after_effect:
            return "another effect"
        return ""

    return Written(tree, too_much)


# Claims


class Asked(NamedTuple):
    """What a request amounts to: at most so many devices of a class, narrowed by selectors."""

    device_class: str
    most: float
    watches: bool
    narrowed_by: frozenset[str]
    tolerates: frozenset[tuple[tuple[str, str], ...]]
    amounts: frozenset[tuple[str, str]]


EVERY = float("inf")
AMOUNTS: dict[str | int, set[str]] = {
    "6Gi": {"6Gi"},
    "6 GiB": {"6 GiB", "6Gi"},
    "6GB": {"6GB", "6G"},
    6: {"6"},
    "6g": {"6g"},
    "6Gb": {"6Gb"},
    "six": {"six"},
    "-6Gi": {"-6Gi"},
}
"""Amounts as authors write them, with what each may become: ambiguous ones stay unchanged."""


def asked(fields: Mapping[str, Any]) -> Asked:
    """The request as a cluster reads it; class "" and no devices for one that it would refuse."""
    count = fields.get("count", 1)
    most: float = count if isinstance(count, int) else 0
    if fields.get("allocationMode") == "All":
        most = EVERY if "count" not in fields else 0  # the API server refuses both together
    selectors = [
        each["cel"]["expression"]
        for each in fields.get("selectors") or []
        if isinstance(each, dict) and isinstance(each.get("cel"), dict)
    ]
    tolerations = [each for each in fields.get("tolerations") or [] if isinstance(each, dict)]
    amounts = ((fields.get("capacity") or {}).get("requests") or {}).items()
    return Asked(
        str(fields.get("deviceClassName", "")),
        most,
        fields.get("adminAccess") is True,
        frozenset(map(meaning, selectors)),
        frozenset(tuple(sorted((key, str(value)) for key, value in each.items())) for each in tolerations),
        frozenset((name, str(value)) for name, value in amounts),
    )


EXPRESSIONS = {
    "h100": (
        'device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100 80GB HBM3"',
        'device.attributes["gpu.nvidia.com"].productName = "NVIDIA H100 80GB HBM3"',
        'device.attributes["gpu.nvidia.com"].productname == "NVIDIA H100 80GB HBM3"',
        'device.attributes["gpu.nvidia.com/productName"] == "NVIDIA H100 80GB HBM3"',
        'device.attributes["productName"] == "NVIDIA H100 80GB HBM3"',
    ),
    "40Gi": (
        'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0',
        'device.capacity["gpu.nvidia.com"].memory >= quantity("40Gi")',
        'device.capacity["gpu.nvidia.com"].memory >= "40Gi"',
        'device.capacity["gpu.nvidia.com/memory"].compareTo(quantity("40Gi")) >= 0',
    ),
    "driver 570": (
        'device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("570.0.0"))',
        'device.attributes["gpu.nvidia.com"].driverVersion > version("570.0.0")',
        'device.attributes["gpu.nvidia.com"].driverVersion > "570.0.0"',
    ),
    "both": (
        'device.attributes["gpu.nvidia.com"].type == "gpu" && device.attributes["gpu.nvidia.com"].index == 0',
        'device.attributes["gpu.nvidia.com"].type == "gpu" and device.attributes["gpu.nvidia.com"].index == 0',
    ),
}
"""Conditions, each in several spellings."""


def meaning(expression: str) -> str:
    """The condition that an expression has, judged by its terms: none may be missing, none reversed."""
    for name, forms in EXPRESSIONS.items():
        if expression.strip() in forms:
            return name
    terms = {
        "h100": ["productName", "H100"],
        "40Gi": ["memory", "40Gi", ">= 0"],
        "driver 570": ["driverVersion", "570", "eater"],
    }
    if "&&" in expression and "type" in expression and "index" in expression:
        return "both"
    for name, needed in terms.items():
        if all(each in expression for each in needed) or (
            name == "driver 570" and "570" in expression and "> 0" in expression
        ):
            return name
    return expression


class MeantClaim(NamedTuple):
    """What an author means; for ambiguous text, every reading."""

    classes: frozenset[str]
    most: Sequence[float]
    watches: bool
    conditions: frozenset[str]
    toleration: Json
    amount: str | int

    def too_much(self, fixed: Json) -> Iterator[str]:
        """What the corrected claim asks for beyond what was meant."""
        now, refused = asked(_fields_of(fixed)), is_refused(fixed)
        if now.device_class not in self.classes:
            yield f"another class: {now.device_class}"
        if any(now.most > most for most in self.most):
            yield f"more devices: {now.most:g} of {self.most}"
        if self.watches and not now.watches and not refused:
            yield "takes what was only to be watched"
        if not refused and now.narrowed_by != self.conditions:
            yield f"other conditions: {sorted(now.narrowed_by)} for {sorted(self.conditions)}"
        for toleration in map(dict, now.tolerates):
            if any(toleration.get(field, "") != self.toleration.get(field, "") for field in ("effect", "operator")):
                yield f"another toleration: {toleration}"
        for _, amount in now.amounts:
            if amount not in AMOUNTS[self.amount]:
                yield f"another amount: {amount} for {self.amount}"


def a_claim(chance: random.Random) -> Written:
    """A claim by which an author means some devices of a class."""
    device_class = chance.choice(CLASSES)
    written_class = slip(chance, device_class) if chance.random() < 0.15 else device_class
    number, most = a_number(chance)
    watches = {"adminAccess": True} if chance.random() < 0.15 else {}
    few = chance.choice((0, 0, 1, 2)) if "nvidia" in device_class else 0
    conditions = frozenset(chance.sample(list(EXPRESSIONS), few))
    toleration = a_toleration(chance) if chance.random() < 0.3 else {}
    amount = chance.choice(list(AMOUNTS)) if chance.random() < 0.3 else ""
    fields: Json = {
        "deviceClassName": written_class,
        **number,
        **watches,
        **({"selectors": as_selectors(chance, conditions)} if conditions else {}),
        **({"tolerations": [toleration]} if toleration else {}),
        **({"capacity": {"requests": {"memory": amount}}} if amount else {}),
    }
    for field in [each for each in fields if chance.random() < 0.05 and len(each) > 4]:
        fields[slip(chance, field)] = fields.pop(field)
    meant = MeantClaim(
        frozenset({device_class, written_class, ""}), most, bool(watches), conditions, toleration, amount
    )
    return Written(around(chance, fields), lambda fixed: next(meant.too_much(fixed), ""))


def a_number(chance: random.Random) -> tuple[Json, list[float]]:
    """The fields that say how many, and every number that they may mean."""
    fields: Json = {}
    if chance.random() < 0.5:
        count = chance.choice((1, 2, 8, 0, 64))
        fields["count"] = chance.choice((count, str(count)))
    counted = [float(fields["count"])] if fields else []
    if chance.random() < 0.3:
        fields["allocationMode"] = mode = chance.choice(("All", "ExactCount", "all", "exact", "Al", "single", "Each"))
        if mode.lower() in {"all", "al"}:
            return fields, [EVERY, *counted]
    return fields, counted or [1.0]


def as_selectors(chance: random.Random, conditions: Iterable[str]) -> Any:
    """Conditions in the forms that authors use: in a list or not, under `cel` or not."""
    written: list[Any] = []
    for each in sorted(conditions):
        expression = chance.choice(EXPRESSIONS[each])
        forms = ({"cel": {"expression": expression}}, {"expression": expression}, expression, {"cel": expression})
        written.append(chance.choice(forms))
    return written if chance.random() < 0.8 or len(written) > 1 else written[0]


def a_toleration(chance: random.Random) -> Json:
    """A toleration whose operator and effect may be invalid."""
    operator = chance.choice(("Exists", "Equal", "Equals", "exists", "In"))
    effect = {"effect": chance.choice((*ODD_EFFECTS, *EFFECTS))} if chance.random() < 0.5 else {}
    value = {"value": "yes"} if operator.startswith("Equal") else {}
    return {"key": "example.com/broken", "operator": operator, **effect, **value}


def around(chance: random.Random, fields: Json) -> Json:
    """A claim or template with one request, in any version, with the spec in the form of its own kind or of the other."""
    request: Json = {"name": "gpu"} if chance.random() < 0.9 else {}
    shape = chance.choice(("exactly", "exactly", "beside", "firstAvailable"))
    request |= {
        "exactly": {"exactly": fields},
        "beside": fields,
        "firstAvailable": {"firstAvailable": [{"name": "first", **fields}]},
    }[shape]
    devices: Json = {"devices": {"requests": [request]}}
    is_template, is_nested = chance.random() < 0.3, chance.random() < 0.2
    return {
        "apiVersion": chance.choice(("resource.k8s.io/v1", "resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2", "v1")),
        "kind": "ResourceClaimTemplate" if is_template else "ResourceClaim",
        "metadata": {"name": "claim"},
        "spec": {"spec": devices} if is_template != is_nested else devices,
    }


def _fields_of(tree: Json) -> Json:
    """The fields of a claim's only request."""
    spec = tree.get("spec") or {}
    devices = (spec.get("spec") or spec).get("devices") or {}
    request = (devices.get("requests") or [{}])[0]
    fields: Json = request.get("exactly") or (request.get("firstAvailable") or [request])[0]
    return fields


def random_manifests(seed: int, number: int) -> Iterator[Written]:
    """This many manifests, the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(number):
        yield chance.choice((a_rule, a_claim))(chance)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(SLICES))
def test_a_correction_never_widens_or_strengthens_what_a_person_wrote(part: int) -> None:
    for written in random_manifests(part, MANIFESTS // SLICES):
        (fixed,) = corrected(written.tree)
        assert not (what := written.too_much(fixed)), f"{what}:\n{json.dumps(written.tree)}\n{json.dumps(fixed)}"
