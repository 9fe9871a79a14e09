"""Random device classes and claims for the allocator's scenarios.

Owns what users ask for: requests, alternatives, counts, selectors, constraints, tolerations, capacities, configuration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.differential.scenarios import Plan
    from tests.differential.supply import Pool

Json = dict[str, Any]
GPU = 'device.attributes["gpu.example.com"]'
SELECTORS = (
    f'{GPU}.model == "A"',
    f'{GPU}.?model.orValue("A") == "A"',
    f'"model" in {GPU} && {GPU}.model == "A"',
    f"has({GPU}.numa) && {GPU}.numa < 1",
    f"{GPU}.?healthy.orValue(true)",
    f'has({GPU}.firmware) && {GPU}.firmware.isGreaterThan(semver("1.5.0"))',
    'device.capacity["gpu.example.com"].?memory.orValue(quantity("0")).compareTo(quantity("20Gi")) >= 0',
    'device.driver == "gpu.example.com"',
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
    'device.attributes["example.com"].?group.orValue("x") == "x"',
    "true",
)
FAILING = (
    f"{GPU}.nosuch == 1",
    f"{GPU}.model",
    f'{GPU}.firmware == "1.0.0"',
    f"{GPU}.healthy",
    'device.capacity["gpu.example.com"].memory.compareTo(quantity("10Gi")) >= 0',
    "device.nosuch",
    "1 +",
    "1 + 1",
    f"{GPU}.numa / 0 == 1",
)
CONSTRAINED = (
    "gpu.example.com/model",
    "gpu.example.com/numa",
    "gpu.example.com/index",
    "gpu.example.com/firmware",
    "gpu.example.com/healthy",
    "example.com/group",
    "nic.example.com/model",
)


@dataclass
class Demand:
    """What claims can ask for: the number of published devices and their drivers."""

    devices: int
    drivers: Sequence[str]

    @classmethod
    def of(cls, pools: "Sequence[Pool]") -> "Demand":
        """The demand for everything that is published."""
        return cls(sum(len(pool.devices) for pool in pools), sorted({pool.driver for pool in pools}))


def classes_of(plan: "Plan", drivers: Sequence[str]) -> Iterator[Json]:
    """One class for anything, one for each driver, one for a model, and a broken one if that is the theme."""
    specs: dict[str, Json] = {"any": {}}
    for driver in drivers:
        specs[driver.split(".", maxsplit=1)[0]] = {"selectors": [_cel(f'device.driver == "{driver}"')]}
    specs["model"] = {"selectors": [_cel('device.driver == "gpu.example.com"'), _cel(plan.random.choice(SELECTORS))]}
    if plan.about("errors"):
        specs["model"]["selectors"].append(_cel(plan.random.choice(FAILING)))
    for name, spec in specs.items():
        if plan.chance(25):
            spec["config"] = [
                {"opaque": _opaque(plan, f"class-{name}-{index}")} for index in range(plan.random.choice([1, 1, 2]))
            ]
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": spec,
        }


def claims_of(plan: "Plan", demand: Demand) -> list[Json]:
    """One to three claims that are allocated together."""
    return [_claim(plan, f"claim-{index}", demand) for index in range(plan.random.choice([1, 1, 1, 1, 2, 3]))]


def _claim(plan: "Plan", name: str, demand: Demand) -> Json:
    requests = [_request(plan, f"r{index}", demand) for index in range(plan.random.choice([1, 1, 1, 1, 2, 2, 3]))]
    spec: Json = {"requests": requests}
    names = [request["name"] for request in requests]
    names += [f"{request['name']}/{each['name']}" for request in requests for each in request.get("firstAvailable", [])]
    if plan.about("constraints"):
        spec["constraints"] = [_constraint(plan, names, demand) for _ in range(plan.random.choice([0, 1, 1, 2]))]
    if plan.chance(25):
        spec["config"] = [
            {
                "opaque": _opaque(plan, f"claim-{index}"),
                **(
                    {"requests": plan.random.sample(names, plan.random.randint(1, len(names)))}
                    if plan.chance(60)
                    else {}
                ),
            }
            for index in range(plan.random.choice([1, 1, 2]))
        ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": plan.random.choice(["default", "team"])},
        "spec": {"devices": spec},
    }


def _request(plan: "Plan", name: str, demand: Demand) -> Json:
    if plan.about("prioritized") and plan.chance(60):
        choices = [{"name": f"s{index}", **_wanted(plan, demand)} for index in range(plan.random.choice([1, 2, 2, 3]))]
        return {"name": name, "firstAvailable": choices}
    exactly = _wanted(plan, demand)
    if plan.about("admin") and plan.chance(40):
        exactly["adminAccess"] = plan.chance(85)
    return {"name": name, "exactly": exactly}


def _wanted(plan: "Plan", demand: Demand) -> Json:
    random = plan.random
    wanted: Json = {"deviceClassName": random.choice(_classes(demand))}
    if plan.about("errors") and plan.chance(6):
        wanted["deviceClassName"] = "nosuch"
    if plan.chance(40):
        wanted["selectors"] = [_cel(random.choice(SELECTORS)) for _ in range(random.choice([1, 1, 1, 2]))]
    if plan.about("errors") and plan.chance(30):
        wanted["selectors"] = [*wanted.get("selectors", []), _cel(random.choice(FAILING))]
    if plan.about("all-mode") and plan.chance(50):
        wanted["allocationMode"] = "All"
    elif plan.chance(80 if plan.about("constraints") or plan.about("partitions") else 50):
        wanted["allocationMode"] = "ExactCount"
        wanted["count"] = _count(plan, demand)
    if plan.about("taints") and plan.chance(60):
        wanted["tolerations"] = [_toleration(plan) for _ in range(random.choice([1, 1, 2]))]
    if plan.about("consumable") and plan.chance(60):
        wanted["capacity"] = {"requests": _amounts(plan)}
    return wanted


def _classes(demand: Demand) -> list[str]:
    own = [driver.split(".", maxsplit=1)[0] for driver in demand.drivers]
    return ["any", "any", *own, *own, *own, "model"]


def _count(plan: "Plan", demand: Demand) -> int:
    if plan.about("limits"):
        return plan.random.choice([1, 2, 15, 16, 17, 30, 31, 32, 33])
    most = max(1, min(demand.devices, 6))
    return plan.random.choice([1, 1, 2, 2, 2, 3, most // 2 + 1, most])


def _amounts(plan: "Plan") -> Json:
    random = plan.random
    amounts = {"memory": random.choice(["1Gi", "3Gi", "4Gi", "5Gi", "10Gi", "1500Mi", "0", "0.5Gi", "2G", "20Gi", "1"])}
    if plan.chance(15):
        amounts["example.com/cores"] = random.choice(["1", "2", "4", "9Gi"])
    if plan.chance(4):
        amounts["nosuch"] = "1"
    if plan.chance(3):
        amounts["memory"] = random.choice(["9223372036854775807", "16E", "100Ei"])
    return amounts


def _toleration(plan: "Plan") -> Json:
    random = plan.random
    toleration: Json = {"operator": random.choice(["Exists", "Equal"])}
    if toleration["operator"] == "Equal" or plan.chance(70):
        toleration["key"] = random.choice(["example.com/a", "example.com/b", "example.com/rule"])
    if toleration["operator"] == "Equal" and plan.chance(60):
        toleration["value"] = random.choice("xy")
    if plan.chance(40):
        toleration["effect"] = random.choice(["NoSchedule", "NoExecute"])
    return toleration


def _constraint(plan: "Plan", names: Sequence[str], demand: Demand) -> Json:
    random = plan.random
    known = [name for name in CONSTRAINED if name.startswith(("example.com", *demand.drivers))]
    constraint: Json = {random.choice(["matchAttribute", "distinctAttribute"]): random.choice(known)}
    if plan.chance(50):
        constraint["requests"] = random.sample(list(names), random.randint(1, len(names)))
    return constraint


def _cel(expression: str) -> Json:
    return {"cel": {"expression": expression}}


def _opaque(plan: "Plan", text: str) -> Json:
    return {"driver": plan.random.choice(["gpu.example.com", "nic.example.com"]), "parameters": {"note": text}}
