"""The schemas in crds/ and the structs of Draco's kinds agree."""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
import yaml

from draco.maintenance.isolating.isolation_state import LISTED_DEVICES
from draco.resources.api.allocation import AllocationRegister
from draco.resources.api.draco import GpuNode, GpuNodeSpec, GpuNodeStatus, MigPolicy
from draco.resources.api.health import HealthPolicy
from draco.resources.api.limits import DeviceLimit
from draco.resources.api.maintenance import DeviceMaintenance, MaintenanceBudget, MaintenancePhase, MaintenanceTaint
from draco.resources.api.reservations import DeviceReservation
from draco.resources.api.sharing import SharingPolicy
from draco.resources.api.usage import GpuUsage
from draco.resources.kinds import (
    ALLOCATION_REGISTERS,
    DEVICE_LIMITS,
    DEVICE_MAINTENANCES,
    DEVICE_RESERVATIONS,
    GPU_NODES,
    GPU_USAGES,
    HEALTH_POLICIES,
    MAINTENANCE_BUDGETS,
    MIG_POLICIES,
    SHARING_POLICIES,
    Kind,
)

CRDS = Path(__file__).parents[3] / "crds"
KINDS: list[tuple[Kind[Any], type[msgspec.Struct]]] = [
    (GPU_NODES, GpuNode),
    (GPU_USAGES, GpuUsage),
    (DEVICE_MAINTENANCES, DeviceMaintenance),
    (MIG_POLICIES, MigPolicy),
    (MAINTENANCE_BUDGETS, MaintenanceBudget),
    (HEALTH_POLICIES, HealthPolicy),
    (ALLOCATION_REGISTERS, AllocationRegister),
    (DEVICE_LIMITS, DeviceLimit),
    (DEVICE_RESERVATIONS, DeviceReservation),
    (SHARING_POLICIES, SharingPolicy),
]


def definition(kind: Kind[Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load((CRDS / f"{kind.plural}.yaml").read_text(), yaml.CSafeLoader)
    return loaded


def schema(kind: Kind[Any]) -> dict[str, Any]:
    found: dict[str, Any] = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def differences(struct: type[msgspec.Struct], properties: dict[str, Any], where: str) -> list[str]:
    """What a struct and a schema disagree on: names, types, and what is required."""
    hints = get_type_hints(struct)
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    found = [f"{where}.{name}: only in the struct" for name in fields.keys() - properties.keys()]
    found += [f"{where}.{name}: only in the schema" for name in properties.keys() - fields.keys()]
    for name in fields.keys() & properties.keys():
        found += type_differences(hints[fields[name].name], properties[name], f"{where}.{name}")
    return found


def type_differences(hint: Any, declared: dict[str, Any], where: str) -> list[str]:
    arguments = [argument for argument in getattr(hint, "__args__", ()) if argument is not type(None)]
    containers: dict[object, tuple[str, str]] = {list: ("array", "items"), dict: ("object", "additionalProperties")}
    inside = containers.get(getattr(hint, "__origin__", None))
    if inside is not None:
        kind, key = inside
        if declared["type"] != kind or key not in declared:
            return [f"{where}: {declared['type']} is not {hint}"]
        return type_differences(arguments[-1], declared[key], f"{where}[]")
    if arguments:
        (hint,) = arguments
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return differences(hint, declared.get("properties", {}), where)
    expected: dict[object, tuple[str, str | None]] = {
        str: ("string", None),
        int: ("integer", None),
        bool: ("boolean", None),
        datetime: ("string", "date-time"),
        Any: ("object", None),  # a driver's own data
    }
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return [] if declared.get("enum") == [str(member) for member in hint] else [f"{where}: other values"]
    kind, form = expected[hint]
    if declared["type"] != kind or (form and declared.get("format") != form):
        return [f"{where}: {declared['type']} is not {hint}"]
    return []


@pytest.mark.parametrize(("kind", "struct"), KINDS)
def test_struct_and_schema_have_the_same_fields(kind: Kind[Any], struct: type[msgspec.Struct]) -> None:
    properties = dict(schema(kind)["properties"])
    hints = get_type_hints(struct)
    parts = [part for part in ("spec", "status") if part in properties or part in hints]
    found = [each for part in parts for each in differences(hints[part], properties[part].get("properties", {}), part)]
    assert found == []


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS])
def test_the_definition_serves_the_kind_where_the_table_says(kind: Kind[Any]) -> None:
    spec = definition(kind)["spec"]
    assert definition(kind)["metadata"]["name"] == f"{kind.plural}.{kind.group}"
    assert spec["group"] == kind.group
    assert spec["names"]["kind"] == kind.kind
    assert spec["names"]["categories"] == ["draco"]
    assert spec["scope"] == ("Namespaced" if kind.namespaced else "Cluster")
    assert [version["name"] for version in spec["versions"]] == [kind.version]
    # The operator writes spec and status of the register together, so that the counts match the list.
    expected: object = None if kind is ALLOCATION_REGISTERS else {"status": {}}
    assert spec["versions"][0].get("subresources") == expected


def test_required_fields_are_those_without_a_default() -> None:
    """Fields that a struct always writes and needs must be required; fields that it omits must not be."""
    for kind, struct in KINDS:
        for where, hint in get_type_hints(struct).items():
            if where in {"spec", "status"}:
                declared = schema(kind)["properties"][where]
                required = {f.encode_name for f in msgspec.structs.fields(hint) if f.required}
                assert set(declared.get("required", [])) == required, f"{kind.kind}.{where}"


def test_the_schema_fills_in_the_same_taint_as_the_struct() -> None:
    taint = schema(DEVICE_MAINTENANCES)["properties"]["spec"]["properties"]["taint"]
    assert taint["default"] == {}
    defaults = {name: declared["default"] for name, declared in taint["properties"].items() if "default" in declared}
    assert msgspec.convert(defaults, MaintenanceTaint) == MaintenanceTaint()
    assert defaults == {"key": MaintenanceTaint().key, "effect": MaintenanceTaint().effect}


def test_the_status_takes_as_many_devices_as_the_plan_lists() -> None:
    devices = schema(DEVICE_MAINTENANCES)["properties"]["status"]["properties"]["devices"]
    assert devices["maxItems"] == LISTED_DEVICES


def test_every_phase_is_allowed() -> None:
    phase = schema(DEVICE_MAINTENANCES)["properties"]["status"]["properties"]["phase"]
    assert phase["enum"] == [str(each) for each in MaintenancePhase]


def test_an_empty_spec_means_the_same_in_both() -> None:
    decoded = msgspec.json.decode(b'{"spec": {"deviceSelector": {"driver": "x"}}}', type=DeviceMaintenance)
    assert decoded.spec.taint == MaintenanceTaint()
    assert decoded.spec.finished is False


def undescribed(declared: dict[str, Any], where: str) -> list[str]:
    """The fields below a schema that have no description."""
    found = []
    for name, field in declared.get("properties", {}).items():
        path = f"{where}.{name}"
        found += [] if field.get("description") else [path]
        inner = field.get("items", field.get("additionalProperties", field))
        found += undescribed(inner, path)
    return found


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS], ids=lambda kind: kind.kind)
def test_kubectl_explain_says_what_every_field_means(kind: Kind[Any]) -> None:
    whole = schema(kind)
    own = {
        name: whole["properties"][name] for name in ("spec", "status") if name in whole["properties"]
    }  # the API server describes the others
    assert whole["description"]
    assert undescribed({"properties": own}, kind.kind) == []


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS], ids=lambda kind: kind.kind)
def test_every_column_that_kubectl_prints_is_a_field(kind: Kind[Any]) -> None:
    version = definition(kind)["spec"]["versions"][0]
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"].partition("[")[0].removeprefix(".").split(".")
        here = {"properties": {**schema(kind)["properties"], "metadata": {"properties": {"creationTimestamp": {}}}}}
        for step in path:
            assert step in here["properties"], f"{column['name']}: there is no {column['jsonPath']}"
            here = here["properties"][step]


def test_the_policy_of_the_operators_reports_knows_every_field_of_a_gpunodes_status() -> None:
    """It permits changes of one condition only, and must list every field that stays unchanged."""
    template = (CRDS.parent / "charts" / "draco" / "templates" / "operator" / "policy.yaml").read_text()
    [fields] = [line for line in template.splitlines() if "$field := list" in line]
    named = {each.strip('"') for each in fields.split() if each.startswith('"')}
    known = {field.encode_name for field in msgspec.structs.fields(GpuNodeStatus)}
    assert named == known - {"conditions"}


def test_an_agent_may_create_its_gpunode_with_nothing_that_the_operator_says() -> None:
    policy = (CRDS.parent / "charts/draco/templates/agent/policy.yaml").read_text()
    fields = [field.encode_name for field in msgspec.structs.fields(GpuNodeSpec)]
    assert [field for field in fields if f"object.?spec.?{field} == optional.none()" not in policy] == []
